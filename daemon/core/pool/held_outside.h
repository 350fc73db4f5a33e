// Memory of the pools that is held outside leases: pure rules that combine the
// reports of the device and of ranks.
//
// On `sim` the device reports this memory to the byte, for processes without a
// session. On `cuda` memory cannot be attributed: each pool leaves some memory
// *spare* for contexts and libraries. The use of a GPU *beside* the daemon's
// extents is held outside as far as it exceeds the spare memory. core/README.md
// says how the figures of the device and of ranks are combined.
//
// The device is asked up to four times a second. On `cuda` an extent that is
// just being made looks like another process's memory, so new memory counts
// only when it is seen a second time.
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
  // The device's figures minus what is spare; only values above 0.
  std::map<PoolId, Bytes> pools;
  // When the device was asked; InfinitePast: not yet.
  absl::Time at = absl::InfinitePast();
  // `pools` include all memory that has been held since this time.
  absl::Time since = absl::InfinitePast();
  // Pools that do not answer now, such as that of a lost GPU, with the time of
  // their last answer. Their figures are of that time. InfinitePast: no answer.
  std::map<PoolId, absl::Time> silent;
  // For GPUs on cuda: all memory that is used beside the daemon's extents.
  std::map<PoolId, Bytes> beside;
  // `beside` when no rank was on that GPU, or less if it has shrunk since then.
  std::map<PoolId, Bytes> before_ranks;
  // A rank's report of `beside`, which may be newer than the device's.
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
    // All memory beside the daemon's extents, with the spare part; absent:
    // none.
    std::map<PoolId, absl::StatusOr<Bytes>> held;
    absl::Time at;
  };
  // `exact`: the device can attribute memory (Driver::TellsHolders).
  OutsideAnswers(const NodeConfig& node, bool exact);

  // REQUIRES: `answer` is newer than all earlier ones.
  HeldOutside Add(const Answer& answer);

 private:
  struct Place {
    Bytes total, spare;
  };
  std::map<PoolId, Place> places_;
  const bool exact_;
  std::map<PoolId, Bytes> before_;  // `held` of the previous answer
  HeldOutside last_;
};

// Combines the device's new report `said` with `before`, the result so far.
// `with_ranks`: GPUs of processes that are or were ranks.
HeldOutside Follow(const HeldOutside& before, HeldOutside said,
                   const std::set<PoolId>& with_ranks);

// Returns how much is held outside leases of a pool that leaves `spare` bytes.
// The result may exceed the part of the pool that is not leased.
Bytes OutsideOf(const HeldOutside& held, PoolId pool, Bytes spare);

// Returns how much all ranks of a GPU hold outside their leases if `beside` is
// used there: what exceeds the use before there were ranks; nullopt if that use
// is unknown. Each rank's part follows from ranks' reports (outside_memory.h).
std::optional<Bytes> OfRanks(const HeldOutside& held, PoolId gpu, Bytes beside);

// Returns what is known of the holders: "processes without a session, …".
std::string_view OutsideHolders(std::string_view driver);
// Returns "8 MiB are held outside leases, by …".
std::string OutsideText(Bytes held, std::string_view holders);

}  // namespace sluice::daemon
