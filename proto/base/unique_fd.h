// The only owner of a file descriptor.
#pragma once

#include <utility>

#include "absl/status/statusor.h"

namespace sluice {

// Closes its descriptor on destruction. Moved-from and default-constructed
// objects have no descriptor (-1). Every descriptor that Sluice opens is
// close-on-exec.
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

}  // namespace sluice
