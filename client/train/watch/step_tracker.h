// Derives where a step is, and how much of it is done, from the segments that
// ran. Segments come in the streamed order (client/torch/README.md):
// the count of a kind that runs once per chunk gives its chunk and layer;
// backward goes from the last layer to the first. The baselines' layers are
// segments too, with the whole sequence as one chunk.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace sluice::train {

struct StepPlace {
  int64_t layer = -1;  // counts from 0; -1: in none
  int64_t chunk = -1;
  bool backward = false;
};

// A kind's share of one sequence. Only ratios matter.
struct SegmentCost {
  double seconds = 0;  // one execution
  int64_t executions = 0;
};
using SegmentCosts = std::map<std::string, SegmentCost, std::less<>>;

class StepTracker {
 public:
  StepTracker() = default;
  StepTracker(int64_t layers, int64_t chunks, SegmentCosts costs);

  // Begins a step with this many sequences, and its first one.
  void BeginStep(int64_t sequences);
  void BeginSequence(int64_t index);
  void Began(std::string_view kind);
  void Ended(std::string_view kind);
  // Records that the work goes on outside chunks.
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

}  // namespace sluice::train
