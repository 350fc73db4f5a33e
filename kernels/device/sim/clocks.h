// The clocks of a simulated node's links. Processes of all users write them, so
// they are in a separate memfd, sealed against truncation and growth. The
// daemon makes it and sends it to each session.
#pragma once

#include <sys/mman.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/sim/state.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

// Unmaps a shared mapping of one T.
template <typename T>
struct Unmap {
  void operator()(T* mapped) const { munmap(mapped, sizeof(T)); }
};
template <typename T>
using Mapped = std::unique_ptr<T, Unmap<T>>;

// Maps the clocks. InvalidArgument: `fd` is no memfd of clocks, or is not
// sealed.
absl::StatusOr<Mapped<SharedClocks>> MapClocks(const UniqueFd& fd);
// Makes clocks that no other process sees. Links timed by them are not shared
// with other processes.
absl::StatusOr<Mapped<SharedClocks>> PrivateClocks();

}  // namespace sluice::device
