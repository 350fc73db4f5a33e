// The clocks of a simulated node's links, which processes of all users write
// together: a memfd of its own, sealed against being cut off or made longer.
// The daemon makes it and hands it to each session.
#pragma once

#include <sys/mman.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/sim/state.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

// Deleter of a shared mapping of one T.
template <typename T>
struct Unmap {
  void operator()(T* mapped) const { munmap(mapped, sizeof(T)); }
};
template <typename T>
using Mapped = std::unique_ptr<T, Unmap<T>>;

// InvalidArgument: this is no memfd of clocks, or not sealed.
absl::StatusOr<Mapped<SharedClocks>> MapClocks(const UniqueFd& fd);
// That no other process sees: links that are not shared with any.
absl::StatusOr<Mapped<SharedClocks>> PrivateClocks();

}  // namespace sluice::device
