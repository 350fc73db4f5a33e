// Memory of the pools that is held outside leases: pure rules that combine the
// reports of the device and of ranks.
//
// On `sim` the device reports it to the byte, for processes without a session.
// On `cuda` memory cannot be attributed: what is used of a GPU *beside* the
// daemon's extents is the daemon's own context, the contexts of ranks, their
// libraries' memory (NCCL, cuBLAS, torch), and other processes' memory. The
// part that exceeds what the pool leaves *spare* is held outside.
//
// The device is asked four times a second, and an extent that is just being
// made looks like another process's memory, so new memory counts when it is
// seen a second time. A rank does not wait for that: when its context exists,
// and before its lease, it reports its own driver's figure for the GPU. Both
// figures are of the same memory, so the larger counts, never their sum; once
// the device was asked twice after the rank's report, only the device's figure
// does.
//
// A rank's memory outside its lease is its part of what was added on the GPU,
// beside the daemon's memory, since the last time without ranks.
//
// Thread safety: none needed; values.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/node/types.h"
#include "proto/base/units.h"

namespace sluice::daemon {

struct HeldOutside {
  // Reported by the device, minus what is spare; only above 0.
  std::map<PoolId, Bytes> pools;
  // When the device was asked; InfinitePast: not yet.
  absl::Time at = absl::InfinitePast();
  // `pools` include all memory that was held at this time and still is.
  absl::Time since = absl::InfinitePast();
  // Pools that do not answer now, such as a lost GPU, with the time of their
  // last answer, from which their figures are. InfinitePast: they never
  // answered.
  std::map<PoolId, absl::Time> silent;
  // GPUs on cuda: all memory in use beside the daemon's extents.
  std::map<PoolId, Bytes> beside;
  // The same when no rank was on that GPU, or less if it has shrunk since.
  std::map<PoolId, Bytes> before_ranks;
  // A rank's report of the same, which the device may not have seen yet.
  struct Told {
    Bytes beside;
    absl::Time at;
    bool operator==(const Told&) const = default;
  };
  std::map<PoolId, Told> told;
  bool operator==(const HeldOutside&) const = default;
};

// Combines the device's successive answers.
class OutsideAnswers {
 public:
  struct Answer {
    // Memory that others hold, spare or not; 0 for pools that are missing.
    std::map<PoolId, absl::StatusOr<Bytes>> held;
    absl::Time at;
  };
  // `exact`: the device attributes memory (Driver::TellsHolders).
  OutsideAnswers(const NodeConfig& node, bool exact);

  // REQUIRES: `answer` is newer than those before.
  HeldOutside Add(const Answer& answer);

 private:
  struct Place {
    Bytes total, spare;
  };
  // Returns the part of `held` that the previous answer had too.
  Bytes Lasting(PoolId pool, Bytes held);
  void StaysAsItWas(PoolId pool, HeldOutside& said) const;

  std::map<PoolId, Place> places_;
  const bool exact_;
  std::map<PoolId, Bytes> before_;  // the previous answer, unchanged
  HeldOutside last_;
};

// Returns what counts after the device's new report `said`, given `before`.
// `with_ranks`: GPUs with ranks, or processes that were ranks.
HeldOutside Follow(const HeldOutside& before, HeldOutside said,
                   const std::set<PoolId>& with_ranks);

// Returns what is held outside of a pool that leaves `spare`. It may be more
// than the pool has beside leases.
Bytes OutsideOf(const HeldOutside& held, PoolId pool, Bytes spare);

// Returns what all ranks of a GPU hold outside their leases if `beside` is in
// use there; nullopt if the use before they came is unknown.
std::optional<Bytes> OfRanks(const HeldOutside& held, PoolId gpu, Bytes beside);

// Returns the holders, as far as the driver can tell: "processes without a
// session, …".
std::string_view OutsideHolders(std::string_view driver);
// Returns "8 MiB are held outside leases, by …".
std::string OutsideText(Bytes held, std::string_view holders);

}  // namespace sluice::daemon
