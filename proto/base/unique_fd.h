#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace sluice {

// Owns a descriptor (-1: none) and closes it on destruction. Every descriptor
// that Sluice opens is close-on-exec.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();
  // Returns a second descriptor of the same open file, close-on-exec.
  absl::StatusOr<UniqueFd> Duplicate() const;

 private:
  int fd_ = -1;
};

using SharedFd = std::shared_ptr<const UniqueFd>;
inline absl::StatusOr<SharedFd> ToShared(absl::StatusOr<UniqueFd> fd) {
  if (!fd.ok()) return fd.status();
  return std::make_shared<const UniqueFd>(*std::move(fd));
}

// A reserve for an event loop that runs out of descriptors. A connection that
// cannot be accepted would wake the loop again and again, so the loop closes
// the spare, accepts the connection and refuses it. Thread safety: one owner.
class SpareFd {
 public:
  SpareFd() { Refill(); }

  // Returns whether accept failed because descriptors or kernel memory are
  // short for the moment.
  static bool IsShortage(int error);

  // Accepts a waiting connection, which the caller refuses and closes. Returns
  // none if accepting fails, for example because another thread took the freed
  // descriptor; the loop must then ignore its listener for a moment.
  UniqueFd Take(int listener);
  // Opens the spare again if it is closed and a descriptor is free. Call Refill
  // after the refused connection was closed, before the listener is polled.
  void Refill();

 private:
  UniqueFd spare_;
};

}  // namespace sluice
