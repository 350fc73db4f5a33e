// How the last daemons ended, in memory that outlives them: a daemon that dies
// again and again with what it took over must not be started for ever.
//
// A page of a memfd. Each daemon notes its start, and its orderly end; a daemon
// that finds a start without an end notes that death.
//
// Thread safety: one owner.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class DeathRecord {
 public:
  // Earlier deaths are forgotten.
  static constexpr absl::Duration kWindow = absl::Seconds(10);

  // `left` is an earlier daemon's; an empty one or another version's is reset.
  static absl::StatusOr<DeathRecord> Open(UniqueFd left);

  // `now` is CLOCK_MONOTONIC's (MonotonicClock), which all of them share.
  void Begin(absl::Time now);
  // How many died within kWindow.
  int Recent(absl::Time now) const;
  // Notes why a daemon ends out of order, if it knows: its first 511 bytes.
  void SayWhy(std::string_view why);
  std::string why() const;  // the last one noted; empty: none
  void EndInOrder();
  // The next daemon begins as if none had died.
  void Forget();

  // For the descriptor store; it stays this object's.
  int fd() const { return fd_.get(); }

 private:
  struct Page;
  struct Unmap {
    void operator()(Page* page) const;
  };
  DeathRecord(UniqueFd fd, std::unique_ptr<Page, Unmap> page)
      : fd_(std::move(fd)), page_(std::move(page)) {}

  UniqueFd fd_;
  std::unique_ptr<Page, Unmap> page_;
};

}  // namespace sluice::daemon
