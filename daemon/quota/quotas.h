// Limits of countable resources, for one principal and for all together.
//
// The daemon asks before it accepts, reads, queues or sends. What was taken is
// returned when its session, slot or packet is over. A principal that holds
// nothing costs no memory.
//
// Thread safety: none needed; the loop's thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/quota/principal.h"

namespace sluice::daemon {

enum class Resource {
  kSessions,      // connections, until their process has ended
  kRanks,         // attached ranks: each has a slot of the grant pages
  kWaiting,       // leases that wait for memory (counted by daemon/core)
  kInFlight,      // descriptors sent and not yet received
  kQueuedBytes,   // packets waiting to be sent
  kProfileBytes,  // decoded profiles, until their plans are made
  kKeptProfiles,  // bytes that profiles and plans may take of the saved state
                  // (counted by daemon/core)
  kCodecTime,     // microseconds in which profiles were decoded
};
inline constexpr size_t kResources = 8;
// The name in configuration and metrics: "sessions".
const char* Name(Resource resource);
// True for a resource that is never refused and never returned: users take
// turns (fair_queue.h). The amount of one user is forgotten with all else that
// the user holds; the sum over all users is not.
bool IsSharedInTurns(Resource resource);
// The amount in the unit of its name for people and metrics: seconds.
double InUnits(Resource resource, int64_t amount);

// How much one principal may have, and all together. The last part of `all`
// (kept) is reserved for principals that have little, so that new ones get
// something even if others have as much as they may.
struct Share {
  int64_t each = 0;  // of one principal
  int64_t all = 0;   // of all together
  int64_t kept() const { return std::min(all / 4, all - each); }
  int64_t little() const { return std::max<int64_t>(kept() / 8, 1); }
  // The limit of all together if one principal is to have `has`.
  int64_t all_for(int64_t has) const {
    return has <= little() ? all : all - kept();
  }
};
// ResourceExhausted in one line: all together have `used`, and `share` leaves
// no room for a principal that would have `has`.
absl::Status NoRoom(const Share& share, const std::string& things, int64_t used,
                    int64_t has);
using Shares = std::array<Share, kResources>;

// The configured shares of one principal; unset: the default.
struct QuotaSettings {
  std::optional<int64_t> sessions;
  std::optional<int64_t> ranks;
  std::optional<int64_t> extents;
  std::optional<int64_t> waiting;
};

// The shares in a process that may have `open_files` descriptors (its soft
// limit): a session costs up to three of them, and the kernel lets one sending
// user have at most the soft limit in flight.
Shares SharesOf(const QuotaSettings& settings, int64_t open_files);
// The share of extents: each takes a descriptor, and a second one until it was
// sent. They get what sessions and the daemon itself leave.
Share ExtentsOf(const QuotaSettings& settings, int64_t open_files);

// The current amounts, as plain data that can leave the loop's thread.
struct QuotasSnapshot {
  using Amounts = std::array<int64_t, kResources>;
  Shares shares = {};
  Amounts used = {};  // of all together
  std::array<uint64_t, kResources> refused = {};
  std::vector<std::pair<Principal, Amounts>> users;  // those that have any
};

// ResourceExhausted in one line: what the principal has, the limit, and what to
// do. Also for resources that are counted elsewhere.
absl::Status TooMuch(const Principal& who, Resource what, int64_t has,
                     int64_t limit);

class Quotas {
 public:
  explicit Quotas(Shares shares) : shares_(shares) {}

  // Takes `amount`. ResourceExhausted in one line with the limit and the
  // remedy.
  absl::Status Ask(const Principal& who, Resource what, int64_t amount = 1);
  // Returns what Ask would return, and takes nothing.
  absl::Status May(const Principal& who, Resource what,
                   int64_t amount = 1) const;
  // Counts a refusal that May decided and the caller sent.
  void CountRefusal(Resource what) { ++refused_[static_cast<size_t>(what)]; }
  // Takes it whatever the limit is: for what exists already and for resources
  // that users take in turns.
  void Charge(const Principal& who, Resource what, int64_t amount = 1);
  // Returns at most what was taken.
  void GiveBack(const Principal& who, Resource what, int64_t amount = 1);

  int64_t used(const Principal& who, Resource what) const;
  int64_t used(Resource what) const;
  const Share& share(Resource what) const;
  // How often Ask refused.
  uint64_t refused(Resource what) const;

  using Amounts = QuotasSnapshot::Amounts;
  // All principals that hold something.
  const std::map<Principal, Amounts>& users() const { return used_; }

  // The current amounts of `viewer`, or of all if it is null.
  QuotasSnapshot TakeSnapshot(const Principal* viewer) const;

  void CheckInvariants() const;

 private:
  static bool HoldsNothing(const Amounts& amounts);

  const Shares shares_;
  std::map<Principal, Amounts> used_;
  Amounts total_ = {};
  std::array<uint64_t, kResources> refused_ = {};
};

}  // namespace sluice::daemon
