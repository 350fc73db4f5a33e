// One training step of the whole streamed model: embedding, layers, final norm
// and chunked loss, and backward through all of it.
//
// Thread safety: one compute thread per StreamContext.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/stream/streamed_layer.h"

namespace sluice::runtime {

// Adds the gradients of (sum of this rank's losses / `global_count`) to
// `gradients` (fp32; the trainer zeroes them and sums them over the ranks).
// Returns the sum of this rank's losses (in fp64) and the number of its labels
// that count.
//
// `tokens` and `labels` are int64 [layout.total_local_rows(rank)] in HBM: this
// rank's rows of chunk 0, then of chunk 1, ... Labels are already shifted; -100
// is ignored. `global_count` is the number of labels not ignored over all ranks
// (and micro-batches, when gradients accumulate). InvalidArgument: a tensor on
// another device than the context's, or with another number of rows.
absl::StatusOr<StepResult> StreamedStep(StreamContext& context,
                                        const ModelTensors& weights,
                                        ModelTensors& gradients,
                                        const at::Tensor& tokens,
                                        const at::Tensor& labels,
                                        int64_t global_count);

}  // namespace sluice::runtime
