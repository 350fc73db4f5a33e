// Limits of countable resources, for each principal and for all together.
// Thread safety: the loop's thread only.
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
  kCodecTime,     // microseconds spent on decoding profiles
};
inline constexpr size_t kResources = 8;
// The name in configuration and metrics, such as "sessions".
const char* Name(Resource resource);
// Returns true for a resource that is never refused and never given back,
// because users take turns (fair_queue.h). A user's amount is dropped with its
// last other resource; the sum over all users stays.
bool IsSharedInTurns(Resource resource);
// Returns the amount in the unit that people see: seconds for codec time.
double InUnits(Resource resource, int64_t amount);

// The limits of one principal and of all together. The last part of `all`
// (kept) is reserved for principals that have little, such as new ones.
struct Share {
  int64_t each = 0;  // of one principal
  int64_t all = 0;   // of all together
  int64_t kept() const { return std::min(all / 4, all - each); }
  int64_t little() const { return std::max<int64_t>(kept() / 8, 1); }
  // The limit of all together if one principal would have `has`.
  int64_t all_for(int64_t has) const {
    return has <= little() ? all : all - kept();
  }
};
// Returns ResourceExhausted in one line: all together have `used`, and `share`
// leaves no room for a principal that would have `has`.
absl::Status NoRoom(const Share& share, const std::string& things, int64_t used,
                    int64_t has);
using Shares = std::array<Share, kResources>;

// The configured limits of one principal; unset: the default.
struct QuotaSettings {
  std::optional<int64_t> sessions;
  std::optional<int64_t> ranks;
  std::optional<int64_t> extents;
  std::optional<int64_t> waiting;
};

// Returns the limits in a process that may have `open_files` descriptors (its
// soft limit): a session costs up to three, and the kernel lets the daemon's
// user have at most the soft limit in flight.
Shares SharesOf(const QuotaSettings& settings, int64_t open_files);
// Returns the limits of extents: each takes a descriptor, and a duplicate until
// that is sent. Extents get the descriptors that sessions and the daemon itself
// do not need.
Share ExtentsOf(const QuotaSettings& settings, int64_t open_files);

// The current amounts, for other threads.
struct QuotasSnapshot {
  using Amounts = std::array<int64_t, kResources>;
  Shares shares = {};
  Amounts used = {};  // of all together
  std::array<uint64_t, kResources> refused = {};
  std::vector<std::pair<Principal, Amounts>> users;
};

// Returns ResourceExhausted in one line: the amount, the limit, what to do.
absl::Status TooMuch(const Principal& who, Resource what, int64_t has,
                     int64_t limit);

class Quotas {
 public:
  explicit Quotas(Shares shares) : shares_(shares) {}

  // Takes `amount`. Errors of TooMuch and NoRoom.
  absl::Status Ask(const Principal& who, Resource what, int64_t amount = 1);
  // Returns what Ask would return, and takes nothing.
  absl::Status May(const Principal& who, Resource what,
                   int64_t amount = 1) const;
  // Counts a refusal that May decided.
  void CountRefusal(Resource what) { ++refused_[static_cast<size_t>(what)]; }
  // Takes the amount even beyond the limit, for what exists already or is
  // shared in turns.
  void Charge(const Principal& who, Resource what, int64_t amount = 1);
  // REQUIRES: the principal has as much; the resource is not shared in turns.
  void GiveBack(const Principal& who, Resource what, int64_t amount = 1);

  int64_t used(const Principal& who, Resource what) const;
  int64_t used(Resource what) const {
    return total_[static_cast<size_t>(what)];
  }
  const Share& share(Resource what) const {
    return shares_[static_cast<size_t>(what)];
  }

  // Returns the amounts of `viewer`, or of all principals if it is null.
  QuotasSnapshot TakeSnapshot(const Principal* viewer) const;

  void CheckInvariants() const;

 private:
  using Amounts = QuotasSnapshot::Amounts;

  const Shares shares_;
  std::map<Principal, Amounts> used_;
  Amounts total_ = {};
  std::array<uint64_t, kResources> refused_ = {};
};

}  // namespace sluice::daemon
