// The `alst` baseline: Arctic Long Sequence Training (arXiv 2506.13996;
// DeepSpeed's runtime/sequence_parallel/ulysses_sp.py), the best practice that
// one command starts today. Internal to client/torch/baseline.
//
// Ulysses; a whole layer is computed again in backward; layer inputs lie in
// host memory in between; attention is whole. Everything else of a layer, the
// loss too, runs over tiles of rows that are computed again, with gradients, in
// backward (its TiledMLP), so that no [rows, ffn] and no [rows, vocab] tensor
// ever is there.
//
// Leaner than the original where that costs nothing: norms, projections and
// RoPE are tiled as well (the original holds norm1's and norm2's outputs and
// the residual between the halves), gradients take the place of what they are
// the gradients of, and q, k and v are exchanged one after the other. What
// lives at the peak, inside attention's backward, is input, gradient, q, k, v,
// o, dO, dq, dk, dv: 10 hidden states of this rank's rows without grouped
// queries. Tests hold it to 14.
//
// Throws c10::Error and StatusException. Thread safety: one thread.
#pragma once

#include "client/torch/baseline/baseline.h"

namespace sluice::runtime::baseline {

// As BaselineStep, for arguments that were checked.
StepResult AlstStep(const BaselineOptions& options, const ModelTensors& weights,
                    ModelTensors& gradients, const at::Tensor& tokens,
                    const at::Tensor& labels, int64_t global_count);

}  // namespace sluice::runtime::baseline
