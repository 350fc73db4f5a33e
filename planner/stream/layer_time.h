// How long a streamed layer takes, from what its compute takes and the links'
// speeds: what hides behind what (FPDT section 4.2, MEMO section 4.1), and what
// hides behind nothing. One source for the run's choice of settings (step_time)
// and for the desk (planner/train).
//
// Thread safety: pure functions.
#pragma once

#include "planner/stream/stream_shape.h"

namespace sluice::stream {

// Bytes per second of a rank; 0: no limit.
struct LinkSpeeds {
  double h2d = 0, d2h = 0;
};

// Seconds of one layer on a rank without its copies, piece by piece.
struct LayerCompute {
  double keys = 0;         // forward's blocks off the diagonal
  double forward = 0;      // the rest of forward
  double tokens = 0;       // backward up to dO, and all that is made again
  double blocks = 0;       // attention's backward, diagonal blocks included
  double projections = 0;  // qkv.backward
  double total() const {
    return keys + forward + tokens + blocks + projections;
  }
};

// The same with copies: what a layer adds to a step, phase by phase.
struct LayerSeconds {
  double forward = 0;
  double tokens = 0;     // Phase::kTokens
  double attention = 0;  // Phase::kAttention: blocks and projections
  double total() const { return forward + tokens + attention; }
};

// Layers follow each other forward without a pause. In backward a layer has two
// phases, and the rings are laid out again between phases: nothing is fetched
// before the last phase's copies are out. So each phase begins with the first
// chunk's copies in and ends with the last one's copies out, which no compute
// hides.
LayerSeconds TimeLayer(const StreamShape& shape, const LayerCompute& compute,
                       const LinkSpeeds& links);

// Seconds of a step in which backward runs forward's layers over the first
// chunks again. `keys`, `forward`: all of it without copies, as LayerCompute's.
double TimeRerun(const StreamOptions& options, double keys, double forward,
                 const LinkSpeeds& links);

// Embedding, loss and the embedding's backward: without copies, and with.
struct EndsCompute {
  double embed = 0, loss = 0, embed_backward = 0;
  double total() const { return embed + loss + embed_backward; }
};
double TimeEnds(const StreamShape& shape, const EndsCompute& compute,
                const LinkSpeeds& links);

}  // namespace sluice::stream
