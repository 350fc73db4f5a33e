// Records how the last daemons ended, in a page of a memfd that outlives them:
// a daemon that dies again and again from the state that it took over must not
// be restarted for ever. A start notes a death if the last run did not end in
// order.
//
// Thread safety: one owner.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class DeathRecord {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(10);

  // Opens the record `left` by an earlier daemon. If `left` is empty or of
  // another version, the record starts empty.
  static absl::StatusOr<DeathRecord> Open(UniqueFd left);

  // Notes a start; if the last daemon did not end in order, also notes its
  // death. `now` is from CLOCK_MONOTONIC (MonotonicClock), which all daemons of
  // the machine share.
  void Begin(absl::Time now);
  int Recent(absl::Time now) const;  // counts the deaths within kWindow
  // Notes why a daemon is about to end because of an error (at most 511 bytes).
  void SayWhy(std::string_view why);
  std::string why() const;  // the reason noted last; may be empty
  void EndInOrder() { page_->runs = 0; }
  void Forget() {
    page_->deaths = {};
    page_->why = {};
  }

  // The descriptor to keep in the store; this object still owns it.
  int fd() const { return fd_.get(); }

 private:
  struct Page {
    uint64_t layout;
    uint64_t runs;  // 1: a daemon has begun and not ended in order
    uint64_t next;  // index into `deaths`, modulo its size
    std::array<int64_t, 16> deaths;  // nanoseconds; 0: unused
    std::array<char, 512> why;       // its last byte is 0
  };
  struct Unmap {
    void operator()(Page* page) const;
  };
  DeathRecord(UniqueFd fd, std::unique_ptr<Page, Unmap> page)
      : fd_(std::move(fd)), page_(std::move(page)) {}

  UniqueFd fd_;
  std::unique_ptr<Page, Unmap> page_;
};

}  // namespace sluice::daemon
