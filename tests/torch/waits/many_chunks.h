// The step from which the tests remove waits.
#pragma once

#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {

// Returns a step of so many chunks that every ring's slots are reused.
inline StepCase ManyChunks(stream::BackwardOrder order) {
  return {.model = stream::Llama({.layers = 2,
                                  .hidden = 32,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .ffn = 44,
                                  .vocab = 50}),
          .seq_len = 71,
          .chunk = 13,
          .stream = {.alpha = 0.5, .prefetch_depth = 3, .order = order}};
}

}  // namespace sluice::runtime
