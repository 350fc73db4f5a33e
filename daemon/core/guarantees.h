// Admission of guaranteed copy bandwidth: a demand test per link and direction.
//
// A link promises at most kPromised of what it carries, so that ranks without
// a guarantee never stop; and at most kPromisedEach of it to one principal, so
// that nobody reserves a link before the others come. A guarantee is both
// directions' (half of a limit that both load together), and all GPUs' behind
// one link share it. It is given whole or not at all: a rank that would get
// less than it asked should know, and run by its fair share.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/core/types.h"

namespace sluice::daemon {

// Which part of a link's speed, in each direction, may be promised: to all
// together, and to one principal.
inline constexpr double kPromised = 0.9;
inline constexpr double kPromisedEach = 0.5;

// What a rank's weight in fair shares may be.
inline constexpr double kLeastWeight = 0.01;
inline constexpr double kMostWeight = 100;
// The weight of `who`'s ranks.
double WeightOf(const NodeConfig& config, const Principal& who);

// Bytes per second that are promised on a link already.
struct Promised {
  double all = 0;
  double to_principal = 0;  // the part of the one that asks
  bool operator==(const Promised&) const = default;
};

// Ok: `asked` bytes per second each way fit beside what is promised.
// FailedPrecondition: the link's speed is not known or not throttled, so there
// is nothing to promise a part of. ResourceExhausted: asked, promised, limit.
absl::Status AdmitGuarantee(const LinkSpeed& link, double asked,
                            const Promised& promised);

// What is left of a guarantee that was given before, when links may have been
// faster. `why`: one line where it is less; empty: all of it.
struct GuaranteeLeft {
  double bytes_per_second = 0;  // whole ones
  std::string why;
};
// As much of the guarantee `had` as still fits beside what is promised. Unlike
// a new one it need not be whole: its rank runs already, and was promised it.
GuaranteeLeft KeepGuarantee(const LinkSpeed& link, double had,
                            const Promised& promised);

// For people: what the rank had, has, and why.
std::string LoweredText(double had, const GuaranteeLeft& left);

}  // namespace sluice::daemon
