// Computes how long a streamed layer takes, from its compute times and the
// links' speeds: which copies overlap with compute (FPDT section 4.2, MEMO
// section 4.1), and which do not. Used by a run's choice of settings
// (step_time) and by the desk (planner/train).
//
// Thread safety: pure functions.
#pragma once

#include "planner/stream/stream_shape.h"

namespace sluice::stream {

// Bytes per second of a rank; 0: no limit.
struct LinkSpeeds {
  double h2d = 0, d2h = 0;
};

// Seconds of one layer's compute on a rank, without copies, piece by piece.
struct LayerCompute {
  double keys = 0;         // forward's off-diagonal blocks
  double forward = 0;      // the rest of forward
  double tokens = 0;       // backward up to dO, and all recomputation
  double blocks = 0;       // attention's backward, diagonal blocks included
  double projections = 0;  // qkv.backward
  double total() const {
    return keys + forward + tokens + blocks + projections;
  }
};

// Seconds that a layer adds to a step, copies included, phase by phase.
struct LayerSeconds {
  double forward = 0;
  double tokens = 0;     // Phase::kTokens
  double attention = 0;  // Phase::kAttention: blocks and projections
  double total() const { return forward + tokens + attention; }
};

// Returns a layer's time. Forward runs layers without a pause. Backward has two
// phases per layer, and the rings are laid out again between phases: except
// into early slots (StreamShape::early), nothing is fetched before the last
// phase's copies are out. So the first chunk's other copies in and the last
// chunk's copies out overlap with no compute of their phase.
LayerSeconds TimeLayer(const StreamShape& shape, const LayerCompute& compute,
                       const LinkSpeeds& links);

// Seconds per step in which backward reruns forward's layers over the first
// chunks. `keys`, `forward`: their total compute, as in LayerCompute.
double TimeRerun(const StreamOptions& options, double keys, double forward,
                 const LinkSpeeds& links);

// Compute of the embedding, the loss and the embedding's backward. TimeEnds
// returns their seconds with copies.
struct EndsCompute {
  double embed = 0, loss = 0, embed_backward = 0;
  double total() const { return embed + loss + embed_backward; }
};
double TimeEnds(const StreamShape& shape, const EndsCompute& compute,
                const LinkSpeeds& links);

}  // namespace sluice::stream
