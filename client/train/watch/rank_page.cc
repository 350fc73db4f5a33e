#include "client/train/watch/rank_page.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>

#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
using Words = std::array<uint64_t, sizeof(RankSample) / sizeof(uint64_t)>;
// Indexed by RankPhase.
constexpr const char* kPhases[] = {
    "starting",          "calibrating", "waiting for the daemon's plan",
    "between two steps", "in a step",   "saving a checkpoint"};

// Returns the kind without ".full" or ".tail".
std::string_view Base(std::string_view kind) {
  if (kind.ends_with(".full") || kind.ends_with(".tail")) kind.remove_suffix(5);
  return kind;
}

std::string Left(const RankSample& sample, double now_s) {
  const double left = SecondsLeft(sample, now_s);
  return left >= 0
             ? fmt::format("about {} left", Duration(left))
             : fmt::format("{} so far", Duration(now_s - sample.phase_began_s));
}

}  // namespace

StepTracker::StepTracker(int64_t layers, int64_t chunks, SegmentCosts costs)
    : layers_(layers), chunks_(chunks), costs_(std::move(costs)) {
  for (const auto& [kind, cost] : costs_) {
    total_ += cost.seconds * static_cast<double>(cost.executions);
  }
}

void StepTracker::BeginStep(int64_t sequences) {
  sequences_ = std::max<int64_t>(sequences, 1);
  BeginSequence(0);
}

void StepTracker::BeginSequence(int64_t index) {
  sequence_ = index;
  begun_.clear();
  done_ = 0;
  place_ = {};
}

void StepTracker::Began(std::string_view kind) {
  const std::string_view base = Base(kind);
  const auto has = [base](const char* part) {
    return base.find(part) != std::string_view::npos;
  };
  // Unlike all others, these two kinds do not run once per chunk: place_ stays.
  if (has("offdiagonal") || has("recompute")) return;
  auto begun = begun_.find(base);
  if (begun == begun_.end()) begun = begun_.emplace(base, 0).first;
  const int64_t before = begun->second++;
  const int64_t chunks = std::max<int64_t>(chunks_, 1);
  place_.backward = has("backward");
  // The loss takes several small chunks at once.
  place_.chunk = base.starts_with("loss") ? -1 : before % chunks;
  const int64_t nth = before / chunks;
  const bool outside = base.starts_with("embed") || base.starts_with("loss");
  place_.layer = outside           ? -1
                 : place_.backward ? std::max<int64_t>(layers_ - 1 - nth, 0)
                                   : nth;
}

void StepTracker::Ended(std::string_view kind) {
  const auto cost = costs_.find(kind);
  if (cost != costs_.end()) done_ += cost->second.seconds;
}

double StepTracker::fraction() const {
  if (total_ <= 0) return 0;
  const double done =
      static_cast<double>(sequence_) + std::min(done_ / total_, 1.0);
  return std::clamp(done / static_cast<double>(sequences_), 0.0, 1.0);
}

PageText& PageText::operator=(std::string_view text) {
  *this = PageText();
  text.copy(bytes_, sizeof(bytes_) - 1);
  return *this;
}

// A sample in words that are each read and written atomically. The words of a
// new file are 0, so its number of events is 0.
struct RankPage::Shared {
  std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words;
};
static_assert(offsetof(RankSample, events) == 0);

std::string Where(const RankSample& s) {
  std::string text = s.phase == RankPhase::kStep
                         ? fmt::format("step {}", s.step)
                         : kPhases[static_cast<size_t>(s.phase)];
  if (s.place.layer >= 0) {
    text += fmt::format(", layer {} of {}", s.place.layer + 1, s.layers);
  }
  if (s.place.chunk >= 0 && s.chunks > 1) {
    text += fmt::format(", chunk {} of {}", s.place.chunk + 1, s.chunks);
  }
  if (s.place.chunk >= 0) text += s.place.backward ? ", backward" : ", forward";
  if (!s.segment.empty())
    text += fmt::format(", in {}", std::string_view(s.segment));
  if (!s.waits_in.empty())
    text += fmt::format(", in {}", std::string_view(s.waits_in));
  return text;
}

double SecondsLeft(const RankSample& s, double now_s) {
  const double elapsed = now_s - s.phase_began_s;
  // Once there is some progress, it predicts better than the calibration.
  if (s.fraction > 0.05) return elapsed * (1 - s.fraction) / s.fraction;
  return s.expected_s > 0 ? std::max(s.expected_s - elapsed, 0.0) : -1;
}

absl::StatusOr<std::unique_ptr<RankPage>> RankPage::Open(
    const std::string& path) {
  UniqueFd fd;
  if (!path.empty()) {
    fd = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd || ftruncate(fd.get(), sizeof(Shared)) != 0) {
      return ErrnoStatus(errno, "make the progress page " + path);
    }
  }
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | (path.empty() ? MAP_ANONYMOUS : 0),
                      path.empty() ? -1 : fd.get(), 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map a progress page");
  return std::unique_ptr<RankPage>(new RankPage(static_cast<Shared*>(memory)));
}

RankPage::~RankPage() { munmap(shared_, sizeof(Shared)); }

void RankPage::Publish() {
  const Words words = std::bit_cast<Words>(own_);
  // Stores the first word, the events, last. `Read` loads that word first, so a
  // reader that sees an event sees all words that the event set.
  for (size_t i = words.size() - 1; i > 0; --i) {
    shared_->words[i].store(words[i], kRelaxed);
  }
  shared_->words[0].store(words[0], std::memory_order_release);
}

void RankPage::Enter(RankPhase phase, double now_s) {
  own_.phase = phase;
  own_.phase_began_s = now_s;
  own_.place = {};
  own_.fraction = 0;
  own_.segment = "";
  ++own_.events;
  Publish();
}

void RankPage::BeginStep(int64_t step, double expected_s) {
  own_.step = step;
  SetExpected(expected_s);
}

void RankPage::SetExpected(double seconds) {
  own_.expected_s = seconds;
  Publish();
}

void RankPage::SetSegment(std::string_view kind, const StepTracker& tracker) {
  own_.segment = kind;
  own_.place = tracker.place();
  own_.layers = tracker.layers();
  own_.chunks = tracker.chunks();
  own_.fraction = tracker.fraction();
  ++own_.events;
  Publish();
}

void RankPage::SetCollective(std::string_view what) {
  own_.waits_in = what;
  own_.collectives += !what.empty();
  ++own_.events;
  Publish();
}

RankSample RankPage::Read() const {
  Words words;
  words[0] = shared_->words[0].load(std::memory_order_acquire);
  for (size_t i = 1; i < words.size(); ++i) {
    words[i] = shared_->words[i].load(kRelaxed);
  }
  const auto sample = std::bit_cast<RankSample>(words);
  return sample.events > 0 ? sample : RankSample();
}

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

std::string Counted(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string ProgressText(const RankSample& s, int64_t steps, double now_s) {
  if (s.phase != RankPhase::kStep) {
    return fmt::format("{}, {} so far", Where(s),
                       Duration(now_s - s.phase_began_s));
  }
  RankSample place = s;
  place.waits_in = "";
  // Segment names are for experts, so a segment is named only outside chunks.
  const std::string_view segment =
      s.place.chunk >= 0 ? std::string_view() : s.segment;
  place.segment = segment.substr(0, segment.find('.'));
  std::string where = Where(place);
  const size_t comma = where.find(", ");
  where = comma != std::string::npos ? where.substr(comma + 2) + "  " : "";
  return fmt::format("step {}/{}  {:.0f} %  {}{}", s.step, steps,
                     std::floor(100 * s.fraction), where, Left(s, now_s));
}

std::string StopText(const StopWish& wish, const RankSample& sample,
                     double now_s) {
  std::string text = wish.signal == 0 ? "The daemon evicts this job: "
                     : wish.signal == SIGINT
                         ? "Ctrl-C: "
                         : fmt::format("SIG{}: ", sigabbrev_np(wish.signal));
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
