// The sending side of sd_notify(3): one datagram a message, with descriptors,
// and a barrier, which confirms that all before it was taken.
//
// Thread safety: one thread, but Cancel from any.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class NotifySocket {
 public:
  // `address`: a path, or '@' and an abstract name. InvalidArgument: neither,
  // or too long. A missing listener shows when it is sent to.
  static absl::StatusOr<std::unique_ptr<NotifySocket>> Make(
      const std::string& address);

  // Waits until `deadline` where the queue is full. DeadlineExceeded: it stayed
  // so; Unavailable: there is no listener; Cancelled.
  absl::Status Send(std::string_view message, absl::Time deadline, int fd = -1);
  // Returns when all that was sent before has been taken. DeadlineExceeded: it
  // was not by then, and may be later or never. Also where the store died
  // before it had read this: the kernel closes its end of the pipe all the
  // same.
  absl::Status Barrier(absl::Time deadline);
  // Ends waits with Cancelled, now and from now on.
  void Cancel();

 private:
  NotifySocket(std::string address, UniqueFd cancel)
      : address_(std::move(address)), cancel_(std::move(cancel)) {}
  absl::Status ConnectNow();
  // Polls `fd` for at most `longest`. False: not ready by then.
  absl::StatusOr<bool> Wait(int fd, short events, absl::Duration longest);
  absl::Status Late(std::string_view what) const;

  const std::string address_;
  const UniqueFd cancel_;  // an eventfd
  // Connected, so that poll tells when there is room. Connected again after a
  // fault: another process may listen by then.
  UniqueFd socket_;
};

}  // namespace sluice::daemon
