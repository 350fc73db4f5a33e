#include "client/train/watch/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sluice::train {
namespace {

constexpr double kStoppedSeconds = 2;
// Segments are far shorter, but a busy machine may delay one this long.
constexpr double kLeastLateSeconds = 30;
constexpr double kLeastEndSeconds = 600;
// The limit while the duration of a step is unknown; c10d uses the same.
constexpr double kUnknownEndSeconds = 1800;

// A rank that sets up or saves is not judged late, because it may read and
// write for long without progress on its page.
bool Judged(const WatchedRank& r) {
  return r.stopped || r.sample.phase == RankPhase::kStep ||
         r.sample.phase == RankPhase::kCalibrating;
}

}  // namespace

double LateAfter(const WatchLimits& limits, double expected_s) {
  if (limits.late_after_s >= 0) return limits.late_after_s;
  return std::max(kLeastLateSeconds, 2 * expected_s);
}

double EndAfter(const WatchLimits& limits, double expected_s) {
  if (limits.end_after_s >= 0) return limits.end_after_s;
  if (expected_s <= 0) return kUnknownEndSeconds;
  return std::max(kLeastEndSeconds, 20 * expected_s);
}

void Watchdog::Update(const WatchedRank& r, double passed_s, Seen& seen,
                      WatchVerdict& verdict) const {
  seen.stopped_s = r.stopped ? seen.stopped_s + passed_s : 0;
  if (seen.stopped_s >= kStoppedSeconds && !seen.stop_said) {
    seen.stop_said = true;
    verdict.notes.push_back(fmt::format(
        "rank {} is stopped by a signal or a debugger ({}); the others wait "
        "for it: kill -CONT {} lets it go on",
        r.rank, Where(r.sample), r.pid));
  }
  seen.quiet_s += passed_s;
  if (r.sample.events == seen.events) return;
  if (seen.stop_said || seen.say_next_s > 0) {
    verdict.notes.push_back(fmt::format("rank {} goes on after {}", r.rank,
                                        Duration(seen.quiet_s)));
  }
  seen.events = r.sample.events;
  seen.quiet_s = 0;
  seen.say_next_s = 0;
  seen.stop_said = seen.stop_said && r.stopped;
}

std::string Watchdog::Accuse(const WatchedRank& r, const Seen& seen,
                             bool waits) const {
  if (!waits) {
    return fmt::format("rank {} is late: nothing new for {} ({}{})", r.rank,
                       Duration(seen.quiet_s), Where(r.sample),
                       r.stopped ? ", stopped by a signal or a debugger" : "");
  }
  return fmt::format(
      "rank {} waits for another rank: nothing new for {} ({}){}", r.rank,
      Duration(seen.quiet_s), Where(r.sample),
      alone_ ? "" : "; so do all ranks: look at the network between them");
}

void Watchdog::Judge(const std::vector<WatchedRank>& ranks, size_t i,
                     bool waits, WatchVerdict& verdict) {
  const WatchedRank& r = ranks[i];
  Seen& seen = seen_[i];
  const double end = EndAfter(limits_, r.sample.expected_s);
  if (end > 0 && seen.quiet_s >= end && verdict.end.empty()) {
    verdict.end = Accuse(r, seen, waits) +
                  fmt::format("; ended after {} without progress (--end-after)",
                              Duration(end));
    return;
  }
  const double late = LateAfter(limits_, r.sample.expected_s);
  if (late <= 0 || seen.quiet_s < std::max(late, seen.say_next_s)) return;
  seen.say_next_s = 2 * seen.quiet_s;
  verdict.notes.push_back(Accuse(r, seen, waits) +
                          (end > 0 ? fmt::format("; the run is ended in {}",
                                                 Duration(end - seen.quiet_s))
                                   : ""));
}

WatchVerdict Watchdog::Look(const std::vector<WatchedRank>& ranks,
                            double now_s) {
  WatchVerdict verdict;
  const double passed_s =
      seen_.empty() ? 0 : std::clamp(now_s - last_look_s_, 0.0, 1.0);
  last_look_s_ = now_s;
  seen_.resize(ranks.size());
  uint64_t furthest = 0, least = std::numeric_limits<uint64_t>::max();
  bool any_stopped = false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    Update(ranks[i], passed_s, seen_[i], verdict);
    if (ranks[i].ended) continue;
    furthest = std::max(furthest, ranks[i].sample.collectives);
    least = std::min(least, ranks[i].sample.collectives);
    any_stopped = any_stopped || ranks[i].stopped;
  }
  // On GPUs collectives are only issued: a rank that waits for a collective is
  // not inside it, but has begun more collectives than another rank. A stopped
  // rank counts as late, however many collectives it has begun, and all others
  // wait for it.
  const auto waits = [&](const WatchedRank& r) {
    if (r.stopped) return false;
    if (any_stopped) return true;
    return r.sample.collectives == furthest &&
           (!r.sample.waits_in.empty() || least < furthest);
  };
  // If all ranks wait, only the first one is judged, and its message says so.
  const bool all_wait = std::all_of(ranks.begin(), ranks.end(), waits);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const WatchedRank& r = ranks[i];
    if (r.ended || !Judged(r)) continue;
    if (waits(r) && !(all_wait && i == 0)) continue;
    Judge(ranks, i, waits(r), verdict);
  }
  return verdict;
}

}  // namespace sluice::train
