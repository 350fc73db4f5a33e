// The two shared pages of swap-bandwidth grants. Their memory layout is a
// contract between daemon and client.
//
// The daemon writes `GrantLimits`, one page per node, which clients map
// read-only: the daemon's heartbeat and, per session and direction, how many
// bytes of copies may have been started since the session began. Each rank
// writes `GrantUse`: the bytes that it has started, and the time by which
// compute needs the first waiting copy. The daemon never trusts GrantUse.
//
// A copy of n bytes in direction d may start when use[d] + n <= limit[d]; the
// fast path is one fetch_add on `use`. When the heartbeat is older than
// kGrantStaleAfter, the rank keeps its last granted rate for kGrantPacedFor,
// because the daemon may only be late. After that the rank copies ungated, so
// that no step waits for a dead daemon.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace sluice {

inline constexpr int kGrantSlots = 256;
inline constexpr absl::Duration kGrantStaleAfter = absl::Milliseconds(20);
inline constexpr absl::Duration kGrantPacedFor = absl::Milliseconds(500);
// A limit this far above the use means unlimited: the link's speed is unknown.
inline constexpr uint64_t kGrantFar = uint64_t{1} << 43;
inline constexpr int kH2d = 0;
inline constexpr int kD2h = 1;

struct alignas(64) GrantLimitSlot {
  std::atomic<uint64_t> limit_bytes[2];  // kH2d, kD2h; cumulative
  // The rate granted recently; 0 if it is unlimited or not stated.
  std::atomic<uint64_t> bytes_per_second[2];
};

struct GrantLimits {
  // The daemon's last update of the limits, in CLOCK_MONOTONIC nanoseconds.
  alignas(64) std::atomic<uint64_t> heartbeat_ns;
  std::atomic<uint64_t> generation;
  GrantLimitSlot slots[kGrantSlots];
};

struct alignas(64) GrantUseSlot {
  std::atomic<uint64_t> used_bytes[2];
  // due_bytes is the value that used_bytes will have after the first waiting
  // copy. due_ns is the time (CLOCK_MONOTONIC nanoseconds) at which compute
  // needs the copy or the memory that it frees. due_bytes is 0 if the rank
  // states no deadline, as older client libraries do. One of the fields may
  // still belong to the previous copy.
  std::atomic<uint64_t> due_bytes[2];
  std::atomic<uint64_t> due_ns[2];
};

// One page per session, so that a rank cannot write another rank's use.
struct GrantUse {
  GrantUseSlot slot;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
// Sizes never change, because pages outlive the daemon that made them.
static_assert(sizeof(GrantUse) == 64);

}  // namespace sluice
