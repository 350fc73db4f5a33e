// The `alst` baseline: Arctic Long Sequence Training (arXiv 2506.13996;
// DeepSpeed's runtime/sequence_parallel/ulysses_sp.py), the best practice that
// a single command can start. Internal to client/torch/baseline.
//
// Ranks exchange heads by Ulysses. Backward computes each whole layer again;
// until then, layer inputs are in host memory. Attention is whole. Everything
// else of a layer, and the loss, runs over tiles of rows that backward computes
// again with gradients (TiledMLP), so no [rows, ffn] and no [rows, vocab]
// tensor ever exists.
//
// This implementation is leaner than the original where that costs nothing:
// norms, projections and RoPE are tiled as well (the original holds norm1's and
// norm2's outputs and the residual between the halves), gradients overwrite the
// tensors that they belong to, and q, k and v are exchanged one after the
// other. The peak, inside attention's backward, holds input, gradient, q, k, v,
// o, dO, dq, dk, dv: 10 hidden states of this rank's rows without grouped
// queries. Tests limit it to 14.
//
// Throws c10::Error and StatusException. Thread safety: one thread.
#pragma once

#include "client/torch/baseline/baseline.h"

namespace sluice::runtime::baseline {

// Runs BaselineStep's alst method for arguments that are already checked.
StepResult AlstStep(const BaselineOptions& options, const ModelTensors& weights,
                    ModelTensors& gradients, const at::Tensor& tokens,
                    const at::Tensor& labels, int64_t global_count);

}  // namespace sluice::runtime::baseline
