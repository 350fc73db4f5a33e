// The layout of a simulated node's state file. Every process that uses the node
// maps the file; only the node's owner writes it. Any process may die at any
// instruction, so every field that changes is an atomic, except `call`, which
// `remaining` guards, and none is a lock. If a process dies in FailCall, the
// entry that it claimed stays claimed.
//
// The clocks of the node's links are written by processes of all users (link.h
// states how far they are trusted), so they are in a separate memfd, sealed
// against truncation and growth. The daemon makes it and sends it to each
// session.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

inline constexpr uint64_t kSimMagic = 0x33'4d49'5343'4c53;  // "SLCSIM3"
inline constexpr int kSimMaxGpus = 64;
inline constexpr int kSimMaxLinks = 64;
inline constexpr int kSimMaxNuma = 16;
inline constexpr int kSimMaxFailures = 32;
inline constexpr int kSimNameLength = 32;

struct SharedClocks {
  struct alignas(64) Link {
    // When the link is free (CLOCK_MONOTONIC), indexed by CopyDirection.
    std::atomic<int64_t> next_free_ns[2];
  };
  Link links[kSimMaxLinks];
};

struct SharedLink {
  char name[kSimNameLength];
  // Indexed by CopyDirection. 0 means no limit.
  std::atomic<double> bytes_per_second[2];
};

struct SharedGpu {
  int64_t memory;
  uint32_t link;
  uint32_t numa;
  std::atomic<uint32_t> lost;
};

struct SharedFailure {
  char call[kSimNameLength];
  std::atomic<int64_t> remaining;  // 0 if the entry is free, -1 if claimed
};

struct SharedState {
  uint64_t magic;
  uint64_t size;  // size of this struct; any other layout is refused
  int64_t granularity;
  int64_t host_memory;
  uint32_t numa_nodes;
  uint32_t gpu_count;
  uint32_t link_count;
  SharedGpu gpus[kSimMaxGpus];
  SharedLink links[kSimMaxLinks];
  std::atomic<uint32_t> failures_armed;  // number of pending failures
  SharedFailure failures[kSimMaxFailures];
  // Used by the owner's processes that get no clocks from a daemon.
  SharedClocks clocks;
};

static_assert(std::atomic<double>::is_always_lock_free);
static_assert(std::atomic<int64_t>::is_always_lock_free);

// Returns an InvalidArgument about the node; `message` states the fault.
absl::Status BadNode(const std::string& message);

// Return InvalidArgument with the impossible value and the possible ones.
absl::Status CheckSimConfig(const SimConfig& config);
absl::Status CheckLinkSpeed(std::string_view link, double bytes_per_second);

// REQUIRES: CheckSimConfig(config) is ok; `state` is all zero.
void WriteConfig(const SimConfig& config, SharedState& state);
// Checks every index and length, because the state comes from a file. The
// result may still be inconsistent: see CheckSimConfig.
SimConfig ReadConfig(const SharedState& state);

// Unmaps a shared mapping of one T.
template <typename T>
struct Unmap {
  void operator()(T* mapped) const { munmap(mapped, sizeof(T)); }
};
template <typename T>
using Mapped = std::unique_ptr<T, Unmap<T>>;

// InvalidArgument: `fd` is no memfd of clocks, or is not sealed.
absl::StatusOr<Mapped<SharedClocks>> MapClocks(const UniqueFd& fd);
absl::StatusOr<Mapped<SharedClocks>> PrivateClocks();

}  // namespace sluice::device
