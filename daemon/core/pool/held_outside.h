// What of the pools is held outside leases: pure rules over what the device
// says, and what ranks tell.
//
// On `sim` the device tells it to the byte, of processes without a session. On
// `cuda` memory cannot be attributed: what is used of a GPU *beside* what
// the daemon made is the daemon's own context, the contexts of ranks, what
// their libraries take (NCCL, cuBLAS, torch), and other processes'. As far as
// it is more than the pool leaves *spare* it is held outside.
//
// The device is asked four times a second, and an extent that is just being
// made looks like another process's memory, so what is new counts when it is
// seen again. A rank does not wait for that: when its context is there, and
// before its lease, it tells what its own driver says is used of the GPU. That
// is the same memory, seen by another, so of both figures the larger counts,
// and never their sum; once the device was asked twice since, only its own
// does.
//
// What a rank has outside its lease is what came beside the daemon's memory
// since no rank was there.
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
  // As the device said, without what is spare; only above 0.
  std::map<PoolId, Bytes> pools;
  absl::Time at = absl::InfinitePast();  // it was asked; never: not yet
  // What was there at this time, and is still, is all in it.
  absl::Time since = absl::InfinitePast();
  // Those that do not answer now, as a lost GPU, and when they did last: what
  // is here of them is of then. InfinitePast: they never did.
  std::map<PoolId, absl::Time> silent;
  // Of GPUs on cuda: all that is used beside what the daemon made.
  std::map<PoolId, Bytes> beside;
  // The same when no rank was on that GPU; less, where it became less since.
  std::map<PoolId, Bytes> before_ranks;
  // The same as a rank's driver said, where the device may not have seen it.
  struct Told {
    Bytes beside;
    absl::Time at;
    bool operator==(const Told&) const = default;
  };
  std::map<PoolId, Told> told;
  bool operator==(const HeldOutside&) const = default;
};

// Joins the device's answers.
class OutsideAnswers {
 public:
  struct Answer {
    // What others hold, spare or not; of places that are not named, nothing.
    std::map<PoolId, absl::StatusOr<Bytes>> held;
    absl::Time at;
  };
  // `exact`: the device attributes memory (Driver::TellsHolders).
  OutsideAnswers(const NodeConfig& node, bool exact);

  // `answer` came after those before.
  HeldOutside Add(const Answer& answer);

 private:
  struct Place {
    Bytes total, spare;
  };
  // What of it was there at the answer before, too.
  Bytes Lasting(PoolId pool, Bytes held);
  void StaysAsItWas(PoolId pool, HeldOutside& said) const;

  std::map<PoolId, Place> places_;
  const bool exact_;
  std::map<PoolId, Bytes> before_;  // the answer before, as it was
  HeldOutside last_;
};

// What counts when the device has `said` something new, after `before`.
// `with_ranks`: GPUs that ranks are on, or their processes.
HeldOutside Follow(const HeldOutside& before, HeldOutside said,
                   const std::set<PoolId>& with_ranks);

// What is held outside of a pool that leaves so much spare. It may be more than
// there is beside leases.
Bytes OutsideOf(const HeldOutside& held, PoolId pool, Bytes spare);

// What all ranks of a GPU have outside their leases, where so much is `beside`.
// nullopt: it is not known what was there before them.
std::optional<Bytes> OfRanks(const HeldOutside& held, PoolId gpu, Bytes beside);

// The holders, as far as they can be known: "processes without a session, …".
std::string_view OutsideHolders(std::string_view driver);
// "8 MiB are held outside leases, by …": the one sentence of it.
std::string OutsideText(Bytes held, std::string_view holders);

}  // namespace sluice::daemon
