// Makes pages on a thread of its own, so that neither a busy loop nor a long
// page holds up the thread that serves connections.
//
// What is asked for while pages are made is made next, once for all who asked:
// a page is always of a snapshot taken after it was asked for, and a flood of
// requests costs the daemon's loop at most one snapshot per kPause.
//
// Thread safety: all of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "absl/time/time.h"
#include "daemon/metrics/pages.h"
#include "proto/base/mutex.h"

namespace sluice::daemon {

class PageMaker {
 public:
  // Between the end of a round and the begin of the next.
  static constexpr absl::Duration kPause = absl::Milliseconds(50);

  using Made = std::function<void(uint64_t round, Pages pages)>;

  // `made` runs on the maker's thread.
  explicit PageMaker(Made made);
  ~PageMaker();  // waits for the running round

  // Until then the daemon starts.
  void Serve(PageSources sources);
  // The round whose pages have it.
  uint64_t Ask(PageKey key);

 private:
  void Work();

  const Made made_;
  Mutex mutex_;
  CondVar changed_;
  std::set<PageKey> asked_ ABSL_GUARDED_BY(mutex_);
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 1;  // of what is in asked_
  std::shared_ptr<const PageSources> sources_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace sluice::daemon
