#include "client/train/watch/words.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cmath>

namespace sluice::train {
namespace {

std::string NameOf(int signal) {
  if (signal == 0) return "The daemon evicts this job";
  if (signal == SIGINT) return "Ctrl-C";
  return fmt::format("SIG{}", sigabbrev_np(signal));
}

std::string Left(const RankSample& sample, double now_s) {
  const double left = SecondsLeft(sample, now_s);
  return left >= 0
             ? fmt::format("about {} left", Duration(left))
             : fmt::format("{} so far", Duration(now_s - sample.phase_began_s));
}

}  // namespace

std::string Duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  if (seconds > 0 && seconds < 0.095) {
    return fmt::format("{} ms",
                       std::max<int64_t>(std::llround(1e3 * seconds), 1));
  }
  if (whole < 10 && seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  if (whole < 120) return fmt::format("{} s", whole);
  if (whole < 7200) return fmt::format("{} min", (whole + 30) / 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string ProgressText(const RankSample& s, int64_t steps, double now_s) {
  if (s.phase != RankPhase::kStep) {
    return fmt::format("{}, {} so far", Where(s),
                       Duration(now_s - s.phase_began_s));
  }
  RankSample place = s;
  place.waits_in.clear();
  // Segment names are for experts, so a segment is named only outside chunks.
  if (s.place.chunk >= 0) place.segment.clear();
  place.segment = place.segment.substr(0, place.segment.find('.'));
  std::string where = Where(place);
  const size_t comma = where.find(", ");
  where = comma != std::string::npos ? where.substr(comma + 2) + "  " : "";
  return fmt::format("step {}/{}  {:.0f} %  {}{}", s.step, steps,
                     std::floor(100 * s.fraction), where, Left(s, now_s));
}

std::string StopText(const StopWish& wish, const RankSample& sample,
                     double now_s) {
  std::string text = NameOf(wish.signal) + ": ";
  if (wish.last_step == 0) {
    text += "ending before the first step";
  } else if (sample.phase == RankPhase::kStep &&
             sample.step == wish.last_step) {
    text += fmt::format("finishing step {} ({})", wish.last_step,
                        Left(sample, now_s));
  } else {
    text += fmt::format("ending after step {}", wish.last_step);
  }
  if (wish.last_step > 0) {
    text += wish.save.empty() ? ", then ending without a checkpoint (no --save)"
                              : fmt::format(", then saving to {}", wish.save);
  }
  if (wish.signal == SIGINT && wish.second_kills) {
    text += "; press Ctrl-C again to stop at once";
  } else if (wish.signal == SIGTERM && wish.second_kills) {
    text += "; a second SIGTERM stops at once";
  }
  return text;
}

}  // namespace sluice::train
