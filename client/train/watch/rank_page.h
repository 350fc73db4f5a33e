// Tracks which part of a step a rank runs, shows it to other processes on a
// shared page, and describes it to people.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice::train {

struct StepPlace {
  int64_t layer = -1;  // counts from 0; -1: in none
  int64_t chunk = -1;
  bool backward = false;
};

// The cost of a kind of segments in one sequence. Only ratios matter.
struct SegmentCost {
  double seconds = 0;  // one execution
  int64_t executions = 0;
};
using SegmentCosts = std::map<std::string, SegmentCost, std::less<>>;

// Derives where a step is, and how much of it is done, from the segments that
// ran. Segments come in the streamed order (client/torch/README.md):
// the count of a kind that runs once per chunk gives its chunk and layer;
// backward goes from the last layer to the first. The baselines' layers are
// segments too, with the whole sequence as one chunk.
// Thread safety: one thread.
class StepTracker {
 public:
  StepTracker() = default;
  StepTracker(int64_t layers, int64_t chunks, SegmentCosts costs);

  // Begins a step with this many sequences, and its first one.
  void BeginStep(int64_t sequences);
  void BeginSequence(int64_t index);
  void Began(std::string_view kind);
  void Ended(std::string_view kind);
  // Records that work outside chunks begins.
  void LeaveChunks() { place_ = {}; }

  const StepPlace& place() const { return place_; }
  // Returns the completed fraction of the step's segments, by their seconds.
  double fraction() const;
  int64_t layers() const { return layers_; }
  int64_t chunks() const { return chunks_; }

 private:
  int64_t layers_ = 0, chunks_ = 1;
  SegmentCosts costs_;
  double total_ = 0;  // of one sequence
  int64_t sequences_ = 1, sequence_ = 0;
  std::map<std::string, int64_t, std::less<>> begun_;  // by Base(kind)
  double done_ = 0;  // of this sequence, in seconds of `costs_`
  StepPlace place_;
};

enum class RankPhase : uint32_t {
  kStarting,     // waiting for other ranks, session, weights, data
  kCalibrating,  // running a few chunks with the real code
  kPlanning,     // waiting for the daemon's plan
  kReady,        // between steps
  kStep,
  kSaving,
};

// A text of up to 47 bytes; a longer text is cut.
class PageText {
 public:
  PageText& operator=(std::string_view text);
  operator std::string_view() const { return bytes_; }
  bool operator==(std::string_view text) const { return bytes_ == text; }
  bool empty() const { return bytes_[0] == '\0'; }

 private:
  char bytes_[48] = {};
};

// Trivially copyable, because a page holds its bytes.
struct RankSample {
  uint64_t events = 0;       // grows with everything that the rank does
  uint64_t collectives = 0;  // entered so far
  int64_t step = 0;          // the current or last one; counts from 1
  PageText segment;          // current segment or other work; empty: none
  PageText waits_in;         // the current collective; empty: none
  StepPlace place;
  int64_t layers = 0, chunks = 0;
  double fraction = 0;       // of the step's segments
  double phase_began_s = 0;  // monotonic seconds
  double expected_s = 0;     // of a step; 0: unknown
  RankPhase phase = RankPhase::kStarting;
};

// A page in shared memory that shows what a rank is doing. The rank writes the
// page as it goes along (a few relaxed stores per segment), because a rank that
// hangs or is stopped cannot answer a question. The launcher and the rank's
// monitor thread read the page.
// Thread safety: one writer, the compute thread, and any number of readers, in
// this process or others. A reader may see fields of two successive updates.
// The page of a rank that hangs is exact.
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
  void Publish();  // copies own_ to the page
  RankSample own_;
  Shared* const shared_;
};

// Formats "step 12, layer 3 of 8, chunk 5 of 64, backward, in all-to-all".
std::string Where(const RankSample& sample);
// Estimates the seconds left of the running step; negative if unknown.
double SecondsLeft(const RankSample& sample, double now_s);

// Formats "34 s", "5 min", "2 h 10 min".
std::string Duration(double seconds);
// Formats "1 rank", "2 ranks".
std::string Counted(int64_t count, std::string_view what);

// Formats "step 12/50  43 %  layer 3 of 8, chunk 5 of 64  about 34 s left".
std::string ProgressText(const RankSample& sample, int64_t steps, double now_s);

struct StopWish {
  int signal = 0;            // 0: the job was evicted
  int64_t last_step = 0;     // the last step to run; 0: none
  std::string save;          // empty: nothing is saved
  bool second_kills = true;  // whether a second signal kills the rank
};
// Formats "Ctrl-C: finishing step 12 (about 34 s left), then saving to out/run;
// press Ctrl-C again to stop at once".
std::string StopText(const StopWish& wish, const RankSample& sample,
                     double now_s);

}  // namespace sluice::train
