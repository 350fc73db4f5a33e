#include "daemon/quota/quotas.h"

#include <fmt/format.h>

#include "proto/base/find.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr size_t At(Resource what) { return static_cast<size_t>(what); }

struct Words {
  const char* name;
  const char* things;  // what is counted, in messages
  const char* remedy;  // what to do, in messages
  double unit = 1;
  bool in_turns = false;
};

const Words& WordsOf(Resource what) {
  static constexpr std::array<Words, kResources> kWords = {{
      {"sessions", "sessions",
       "end some of its processes, or raise sessions in [quota]"},
      {"rank_sessions", "attached ranks",
       "end some (sluicectl jobs lists them), or raise rank_sessions in "
       "[quota]"},
      {"waiting_leases", "leases waiting",
       "let some be granted or give them up, ask without a wait, or raise "
       "waiting_leases in [quota]"},
      {"descriptors_in_flight", "descriptors on their way",
       "let its sessions read what they were sent"},
      {"queued_bytes", "bytes waiting to be sent",
       "let its sessions read what they were sent"},
      {"profile_bytes", "bytes of profiles whose plans are not made yet",
       "submit smaller ones (fewer segments), or fewer jobs at a time"},
      {"kept_profile_bytes", "bytes of profiles and plans in the saved state",
       "submit ones of fewer classes or with shorter names, or end some jobs"},
      {"codec_seconds", "", "", 1e6, /*in_turns=*/true},
  }};
  return kWords[At(what)];
}

// Returns how many descriptors clients may use; the rest is for logs, HTTP,
// gRPC, plans and the worker.
int64_t PoolOf(int64_t open_files) {
  const int64_t own = std::clamp<int64_t>(open_files / 8, 24, 512);
  return std::max<int64_t>(open_files - own, 8);
}

// Returns the limit of sessions. A session takes up to three descriptors, so
// at least half of the pool is left for extents.
int64_t SessionsOf(int64_t pool) {
  constexpr int64_t kMostSessions = 2048;
  return std::clamp<int64_t>(pool / 6, 2, kMostSessions);
}

bool HoldsNothing(const QuotasSnapshot::Amounts& amounts) {
  for (size_t i = 0; i < kResources; ++i) {
    if (amounts[i] != 0 && !IsSharedInTurns(static_cast<Resource>(i))) {
      return false;
    }
  }
  return true;
}

}  // namespace

const char* Name(Resource resource) { return WordsOf(resource).name; }

bool IsSharedInTurns(Resource resource) { return WordsOf(resource).in_turns; }

double InUnits(Resource resource, int64_t amount) {
  return static_cast<double>(amount) / WordsOf(resource).unit;
}

Shares SharesOf(const QuotaSettings& settings, int64_t open_files) {
  constexpr int64_t kMostRanks = 256;
  const int64_t sessions = SessionsOf(PoolOf(open_files));
  const int64_t in_flight = std::max(open_files - 512, open_files / 2);
  Shares shares;
  const auto set = [&](Resource what, int64_t each, int64_t all) {
    shares[At(what)] = {std::min(each, all), all};
  };
  set(Resource::kSessions,
      settings.sessions.value_or(std::min<int64_t>(512, sessions / 2)),
      sessions);
  set(Resource::kRanks, settings.ranks.value_or(kMostRanks / 2), kMostRanks);
  constexpr int64_t kMostWaiting = 512;
  set(Resource::kWaiting, settings.waiting.value_or(kMostWaiting / 8),
      kMostWaiting);
  set(Resource::kInFlight, in_flight / 4, in_flight);
  set(Resource::kQueuedBytes, int64_t{8} << 20, int64_t{256} << 20);
  set(Resource::kProfileBytes, int64_t{8} << 20, int64_t{256} << 20);
  set(Resource::kKeptProfiles, int64_t{16} << 20, int64_t{32} << 20);
  set(Resource::kCodecTime, INT64_MAX, INT64_MAX);
  return shares;
}

Share ExtentsOf(const QuotaSettings& settings, int64_t open_files) {
  const int64_t pool = PoolOf(open_files);
  const int64_t all = std::max<int64_t>((pool - 3 * SessionsOf(pool)) / 2, 1);
  const int64_t half = std::max<int64_t>(all / 2, 1);
  return {std::min(settings.extents.value_or(half), all), all};
}

absl::Status TooMuch(const Principal& who, Resource what, int64_t has,
                     int64_t limit) {
  const Words& words = WordsOf(what);
  return absl::ResourceExhaustedError(
      fmt::format("{} has {} {}, and the limit is {}: {}", Name(who), has,
                  words.things, limit, words.remedy));
}

absl::Status NoRoom(const Share& share, const std::string& things, int64_t used,
                    int64_t has) {
  const std::string kept =
      has <= share.little()
          ? ""
          : fmt::format(", of which {} are kept for users with at most {}",
                        share.kept(), share.little());
  return absl::ResourceExhaustedError(
      fmt::format("this node has {} {}, and the limit of all users together is "
                  "{}{}: wait until users free some",
                  used, things, share.all, kept));
}

absl::Status Quotas::May(const Principal& who, Resource what,
                         int64_t amount) const {
  if (IsSharedInTurns(what)) return absl::OkStatus();
  const Share& limit = share(what);
  const int64_t has = used(who, what);
  if (has + amount > limit.each) return TooMuch(who, what, has, limit.each);
  if (used(what) + amount > limit.all_for(has + amount)) {
    return NoRoom(limit, WordsOf(what).things, used(what), has + amount);
  }
  return absl::OkStatus();
}

absl::Status Quotas::Ask(const Principal& who, Resource what, int64_t amount) {
  const absl::Status may = May(who, what, amount);
  if (may.ok()) {
    Charge(who, what, amount);
  } else {
    ++refused_[At(what)];
  }
  return may;
}

void Quotas::Charge(const Principal& who, Resource what, int64_t amount) {
  SLUICE_CHECK(amount >= 0);
  if (amount == 0) return;
  total_[At(what)] += amount;
  // The time of a principal without other amounts counts only in the sum.
  if (IsSharedInTurns(what) && !used_.contains(who)) return;
  used_[who][At(what)] += amount;
}

void Quotas::GiveBack(const Principal& who, Resource what, int64_t amount) {
  if (amount == 0) return;
  Amounts* amounts = FindOrNull(used_, who);
  SLUICE_CHECK(!IsSharedInTurns(what));
  SLUICE_CHECK(amount > 0 && amounts && (*amounts)[At(what)] >= amount);
  (*amounts)[At(what)] -= amount;
  total_[At(what)] -= amount;
  if (HoldsNothing(*amounts)) used_.erase(who);
}

int64_t Quotas::used(const Principal& who, Resource what) const {
  const Amounts* amounts = FindOrNull(used_, who);
  return amounts != nullptr ? (*amounts)[At(what)] : 0;
}

QuotasSnapshot Quotas::TakeSnapshot(const Principal* viewer) const {
  QuotasSnapshot snapshot{shares_, total_, refused_, {}};
  for (const auto& [who, amounts] : used_) {
    if (viewer == nullptr || who == *viewer) {
      snapshot.users.emplace_back(who, amounts);
    }
  }
  return snapshot;
}

void Quotas::CheckInvariants() const {
  Amounts sum = {};
  for (const auto& [who, amounts] : used_) {
    SLUICE_CHECK(!HoldsNothing(amounts));
    for (size_t i = 0; i < kResources; ++i) {
      SLUICE_CHECK(amounts[i] >= 0);
      sum[i] += amounts[i];
    }
  }
  for (size_t i = 0; i < kResources; ++i) {
    SLUICE_CHECK(IsSharedInTurns(static_cast<Resource>(i))
                     ? sum[i] <= total_[i]
                     : sum[i] == total_[i]);
  }
}

}  // namespace sluice::daemon
