#include "client/train/watch/rank_page.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// By RankPhase.
constexpr const char* kPhases[] = {
    "starting",          "calibrating", "waiting for the daemon's plan",
    "between two steps", "in a step",   "saving a checkpoint"};

// A short text in words that are each read and written atomically.
class SharedText {
 public:
  void Set(std::string_view text) {
    std::array<uint64_t, kWords> words{};
    std::memcpy(words.data(), text.data(),
                std::min(text.size(), sizeof(words) - 1));
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], kRelaxed);
  }
  std::string Get() const {
    std::array<char, kWords * sizeof(uint64_t) + 1> text{};
    for (size_t i = 0; i < kWords; ++i) {
      const uint64_t word = words_[i].load(kRelaxed);
      std::memcpy(text.data() + i * sizeof(word), &word, sizeof(word));
    }
    return text.data();
  }

 private:
  static constexpr size_t kWords = 6;
  std::array<std::atomic<uint64_t>, kWords> words_;
};

}  // namespace

// Zeros, the contents of a new file, are a valid beginning.
struct RankPage::Shared {
  std::atomic<uint64_t> events, collectives;
  std::atomic<uint32_t> phase;
  std::atomic<int64_t> step, layer, chunk, layers, chunks;
  std::atomic<bool> backward;
  std::atomic<double> fraction, phase_began_s, expected_s;
  SharedText segment, waits_in;
};

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
  if (!s.segment.empty()) text += fmt::format(", in {}", s.segment);
  if (!s.waits_in.empty()) text += fmt::format(", in {}", s.waits_in);
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

void RankPage::Enter(RankPhase phase, double now_s) {
  shared_->phase.store(static_cast<uint32_t>(phase), kRelaxed);
  shared_->phase_began_s.store(now_s, kRelaxed);
  shared_->layer.store(-1, kRelaxed);
  shared_->chunk.store(-1, kRelaxed);
  shared_->fraction.store(0, kRelaxed);
  shared_->segment.Set("");
  shared_->events.fetch_add(1, kRelaxed);
}

void RankPage::BeginStep(int64_t step, double expected_s) {
  shared_->step.store(step, kRelaxed);
  SetExpected(expected_s);
}

void RankPage::SetExpected(double seconds) {
  shared_->expected_s.store(seconds, kRelaxed);
}

void RankPage::SetSegment(std::string_view kind, const StepTracker& tracker) {
  shared_->segment.Set(kind);
  shared_->layer.store(tracker.place().layer, kRelaxed);
  shared_->chunk.store(tracker.place().chunk, kRelaxed);
  shared_->backward.store(tracker.place().backward, kRelaxed);
  shared_->layers.store(tracker.layers(), kRelaxed);
  shared_->chunks.store(tracker.chunks(), kRelaxed);
  shared_->fraction.store(tracker.fraction(), kRelaxed);
  shared_->events.fetch_add(1, kRelaxed);
}

void RankPage::SetCollective(std::string_view what) {
  shared_->waits_in.Set(what);
  if (!what.empty()) shared_->collectives.fetch_add(1, kRelaxed);
  shared_->events.fetch_add(1, kRelaxed);
}

RankSample RankPage::Read() const {
  RankSample s;
  s.events = shared_->events.load(kRelaxed);
  s.collectives = shared_->collectives.load(kRelaxed);
  s.phase = static_cast<RankPhase>(shared_->phase.load(kRelaxed));
  s.step = shared_->step.load(kRelaxed);
  s.segment = shared_->segment.Get();
  s.waits_in = shared_->waits_in.Get();
  s.layers = shared_->layers.load(kRelaxed);
  s.chunks = shared_->chunks.load(kRelaxed);
  if (s.events > 0) {  // else layer and chunk are not set
    s.place = {shared_->layer.load(kRelaxed), shared_->chunk.load(kRelaxed),
               shared_->backward.load(kRelaxed)};
  }
  s.fraction = shared_->fraction.load(kRelaxed);
  s.phase_began_s = shared_->phase_began_s.load(kRelaxed);
  s.expected_s = shared_->expected_s.load(kRelaxed);
  return s;
}

}  // namespace sluice::train
