// The tallest heap of transient tensors of a streamed step: what a segment
// allocates and frees while it runs, beside rings, kept rows and states.
//
// A run plans this memory from what it recorded; the desk, which has nothing
// recorded, asks here. Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "planner/stream/segments.h"
#include "planner/stream/stream_shape.h"

namespace sluice::stream {

// Of one segment on the tallest chunk, and of the tallest of all segments.
int64_t TransientBytes(const StreamShape& shape, Segment which);
int64_t TransientBytes(const StreamShape& shape);

}  // namespace sluice::stream
