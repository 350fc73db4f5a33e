// Torch throws; Sluice's targets return absl::Status. The public functions of
// this target run their bodies inside CatchStatus: c10::OutOfMemoryError and
// std::bad_alloc become ResourceExhausted, marked with the memory that ran out,
// a StatusException its Status, anything else Internal with the first line of
// its message (torch appends a stack trace).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::runtime {

// Carries a Status through code that can only throw (autograd functions).
// CatchStatus returns that Status, with its own `what` added to the message.
class StatusException : public std::runtime_error {
 public:
  explicit StatusException(absl::Status status)
      : std::runtime_error(std::string(status.message())),
        status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

inline void ThrowIfError(absl::Status status) {
  if (!status.ok()) throw StatusException(std::move(status));
}

// Converts the current exception. Call it only inside a catch block.
absl::Status CurrentExceptionAsStatus(std::string_view what);

// Runs `body`, which returns absl::Status, absl::StatusOr<T> or nothing.
// Returns its result, or the exception that it throws as a Status.
template <typename Body>
auto CatchStatus(std::string_view what, Body&& body) {
  using Result = decltype(body());
  if constexpr (std::is_void_v<Result>) {
    return CatchStatus(what, [&] {
      body();
      return absl::OkStatus();
    });
  } else {
    try {
      return Result(body());
    } catch (...) {
      return Result(CurrentExceptionAsStatus(what));
    }
  }
}

}  // namespace sluice::runtime
