// Computes how long a streamed layer takes, from its compute times and the
// links' speeds, by modelling which copies overlap with compute (FPDT section
// 4.2, MEMO section 4.1). Used by a run's choice of settings (step_time) and by
// the desk (planner/train).
//
// Thread safety: pure functions.
#pragma once

#include "planner/stream/stream_shape.h"

namespace sluice::stream {

// Bytes per second of a rank; 0: no limit.
struct LinkSpeeds {
  double h2d = 0, d2h = 0;
};

// Seconds of the pieces of one layer's compute on a rank, without copies.
struct LayerCompute {
  double keys = 0;         // forward's off-diagonal blocks
  double forward = 0;      // the rest of forward
  double tokens = 0;       // backward up to dO, and all recomputation
  double blocks = 0;       // attention's backward with diagonal blocks
  double projections = 0;  // qkv.backward
  double total() const {
    return keys + forward + tokens + blocks + projections;
  }
};

// The seconds that a layer adds to each phase of a step, including copies.
struct LayerSeconds {
  double forward = 0;
  double tokens = 0;     // Phase::kTokens
  double attention = 0;  // Phase::kAttention: blocks and projections
  double total() const { return forward + tokens + attention; }
};

// Returns a layer's time. In forward, layers follow each other without a pause.
// Backward has two phases per layer, between which the rings change their
// layout: except into early slots (StreamShape::early), a phase fetches nothing
// before the copies of the phase before are out. So the other copies in of its
// first chunk and the copies out of its last chunk overlap with no compute of
// the phase.
LayerSeconds TimeLayer(const StreamShape& shape, const LayerCompute& compute,
                       const LinkSpeeds& links);

// Returns the seconds per step in which backward reruns layers' forward over
// the first chunks. `keys`, `forward`: the total compute of these pieces
// (LayerCompute).
double TimeRerun(const StreamOptions& options, double keys, double forward,
                 const LinkSpeeds& links);

// Seconds of compute of the embedding, the loss and the embedding's backward.
// TimeEnds returns their total time with copies.
struct EndsCompute {
  double embed = 0, loss = 0, embed_backward = 0;
  double total() const { return embed + loss + embed_backward; }
};
double TimeEnds(const StreamShape& shape, const EndsCompute& compute,
                const LinkSpeeds& links);

}  // namespace sluice::stream
