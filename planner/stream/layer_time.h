// Computes how long a streamed layer and step take, from compute times and the
// links' speeds, by modelling which copies overlap with compute (FPDT section
// 4.2, MEMO section 4.1).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/stream/schedule.h"
#include "planner/stream/stream_shape.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// Bytes per second of a rank; 0 means no limit.
struct LinkSpeeds {
  double h2d = 0, d2h = 0;
};

// Seconds of the pieces of one layer's compute on a rank, without copies.
struct LayerCompute {
  double keys = 0;         // forward's off-diagonal blocks
  double forward = 0;      // forward without these blocks
  double tokens = 0;       // backward up to dO, and all recomputation
  double blocks = 0;       // attention's backward with diagonal blocks
  double projections = 0;  // qkv.backward
  double total() const {
    return keys + forward + tokens + blocks + projections;
  }
};

// The seconds that a layer adds to each Phase of a step, including copies.
struct LayerSeconds {
  double forward = 0;
  double tokens = 0;
  double attention = 0;  // blocks and projections
  double total() const { return forward + tokens + attention; }
};

// Returns a layer's times. In forward, layers follow each other without a
// pause. In backward the rings change their layout between the two phases, so a
// phase fetches nothing before the previous phase's copies out have ended,
// except into early slots (StreamShape::early). So a phase's first copies in
// and last copies out overlap with none of the phase's compute.
LayerSeconds TimeLayer(const StreamShape& shape, const LayerCompute& compute,
                       const LinkSpeeds& links);

// Returns the seconds per step in which backward reruns layers' forward over
// the first chunks. `keys` and `forward` are the compute seconds of all reruns
// (as in LayerCompute).
double TimeRerun(const StreamOptions& options, double keys, double forward,
                 const LinkSpeeds& links);

// Seconds of compute of the embedding, the loss and the embedding's backward.
struct EndsCompute {
  double embed = 0, loss = 0, embed_backward = 0;
  double total() const { return embed + loss + embed_backward; }
};
// Returns the seconds of the three parts together, with their copies.
double TimeEnds(const StreamShape& shape, const EndsCompute& compute,
                const LinkSpeeds& links);

class RecordedSeconds {
 public:
  explicit RecordedSeconds(const std::vector<plan::SegmentKind>& recorded);
  // Returns the seconds of `count` executions; 0 for an unrecorded kind.
  double Of(Segment which, const Executions& count) const;

 private:
  std::map<std::string, double> once_;  // seconds of one execution, by kind
};

// Returns the seconds of a step of one sequence. `recorded` has the segments of
// a step that dropped nothing, with the same chunk size and any number of
// layers and chunks. Recomputing a dropped class costs its share of the segment
// that makes it.
double StepSeconds(const StreamOptions& options,
                   const std::vector<plan::SegmentKind>& recorded,
                   const LinkSpeeds& links);

}  // namespace sluice::stream
