// A page in shared memory that shows what a rank is doing. The rank writes the
// page as it goes along (a few relaxed stores per segment), because a rank that
// hangs or is stopped cannot answer a question; its own monitor thread and the
// launcher read it.
// Thread safety: one writer (the compute thread; for Set... also the watch),
// any number of readers, in this process or others. A reader may see fields of
// two neighbouring moments; the page of a rank that stands still is exact.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/train/watch/step_tracker.h"

namespace sluice::train {

enum class RankPhase : uint32_t {
  kStarting,     // waiting for other ranks, session, weights, data
  kCalibrating,  // running two chunks with the real code
  kPlanning,     // waiting for the daemon's plan
  kReady,        // between steps
  kStep,
  kSaving,
};

struct RankSample {
  uint64_t events = 0;       // counts everything that the rank does
  uint64_t collectives = 0;  // entered so far
  RankPhase phase = RankPhase::kStarting;
  int64_t step = 0;      // the current or last one; counts from 1
  std::string segment;   // current segment or other work; empty: none
  std::string waits_in;  // the current collective; empty: none
  StepPlace place;
  int64_t layers = 0, chunks = 0;
  double fraction = 0;       // of the step's segments
  double phase_began_s = 0;  // monotonic seconds
  double expected_s = 0;     // of a step; 0: unknown
};

// Formats "step 12, layer 3 of 8, chunk 5 of 64, backward, in all-to-all".
std::string Where(const RankSample& sample);
// Estimates the seconds left of the running step; negative if unknown.
double SecondsLeft(const RankSample& sample, double now_s);

class RankPage {
 public:
  // An empty path makes a page that only this process sees.
  static absl::StatusOr<std::unique_ptr<RankPage>> Open(
      const std::string& path);
  ~RankPage();

  void Enter(RankPhase phase, double now_s);
  void BeginStep(int64_t step, double expected_s);
  void SetExpected(double seconds);
  // These record that a segment or collective begins; empty: it ended.
  void SetSegment(std::string_view kind, const StepTracker& tracker);
  void SetCollective(std::string_view what);

  RankSample Read() const;

 private:
  struct Shared;
  explicit RankPage(Shared* shared) : shared_(shared) {}
  Shared* const shared_;
};

}  // namespace sluice::train
