// What a rank is doing: a page that the rank writes and that its own monitor
// thread and the launcher read.
//
// Why a page: a rank that hangs, or is stopped, does not answer. It writes as
// it goes along (a few relaxed stores per segment), and what it wrote last is
// where it is.
//
// Thread safety: one writer (the compute thread; Set... of the watch too), any
// number of readers, in this process or others. A reader may see fields of
// two neighbouring moments; of a rank that stands still it sees the truth.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/train/watch/step_tracker.h"

namespace sluice::train {

enum class RankPhase : uint32_t {
  kStarting,     // meeting the others, the session, weights, data
  kCalibrating,  // running two chunks with the real code
  kPlanning,     // waiting for the daemon's plan
  kReady,        // between steps
  kStep,
  kSaving,
};
// "waiting for the daemon's plan"
const char* Words(RankPhase phase);

struct RankSample {
  uint64_t events = 0;       // grows with all that the rank does
  uint64_t collectives = 0;  // entered so far
  RankPhase phase = RankPhase::kStarting;
  int64_t step = 0;      // the one that runs, or ran last; counts from 1
  std::string segment;   // or another piece of work; empty: between two
  std::string waits_in;  // the collective it is in; empty: in none
  StepPlace place;
  int64_t layers = 0, chunks = 0;
  double fraction = 0;       // of the step's segments
  double phase_began_s = 0;  // monotonic seconds
  double expected_s = 0;     // of a step; 0: not known
};

// "step 12, layer 3 of 8, chunk 5 of 64, backward, in all-to-all"
std::string Where(const RankSample& sample);
// Seconds left of the running step; negative: nothing is known yet.
double SecondsLeft(const RankSample& sample, double now_s);

class RankPage {
 public:
  // Makes the file if it is not there. Empty: a page of this process only.
  static absl::StatusOr<std::unique_ptr<RankPage>> Open(
      const std::string& path);
  ~RankPage();

  void Enter(RankPhase phase, double now_s);
  void BeginStep(int64_t step, double expected_s);
  void SetExpected(double seconds);
  // A piece of work begins; empty: it ended.
  void SetSegment(std::string_view kind, const StepTracker& tracker);
  // A collective begins; empty: it ended.
  void SetCollective(std::string_view what);

  RankSample Read() const;

 private:
  struct Shared;
  explicit RankPage(Shared* shared) : shared_(shared) {}
  Shared* const shared_;
};

}  // namespace sluice::train
