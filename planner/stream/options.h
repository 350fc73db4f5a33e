// What decides the arithmetic of one rank's streamed step: model, layout, and
// how it is cut. The run fills it from flags or from a plan, the desk from a
// question; everything in this folder follows from it.
//
// Thread safety: values.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "planner/stream/fractions.h"
#include "planner/stream/layouts.h"
#include "planner/stream/model_shape.h"

namespace sluice::stream {

// The type of weights and activations.
enum class Dtype { kFp32, kBf16 };
constexpr int64_t ElementBytes(Dtype dtype) {
  return dtype == Dtype::kFp32 ? 4 : 2;
}

// Which side of backward's blocks of attention stays while the other passes.
// Keys outer: k_i, v_i stay, their gradients are summed in HBM, and for each
// later query chunk q, o, lse and dO come, dq comes and goes (FPDT). Queries
// outer: the other way round; k, v, dk and dv travel, which is less where few
// kv heads serve many q heads.
enum class BackwardOrder { kKeysOuter, kQueriesOuter };

// Whether a step of that order has the class: the sums of the side that stays
// are no class.
bool HasClass(BackwardOrder order, Class which);

struct StreamOptions {
  ModelShape model;
  ChunkLayout layout{0, 1, 1};
  int rank = 0;
  Dtype dtype = Dtype::kFp32;
  // Token fractions of the free classes (fractions.h); those that are not
  // named swap alpha and keep nothing (MEMO's policy).
  double alpha = 1.0;
  FractionMap fractions;
  int prefetch_depth = 2;  // slots of the block ring: one in use, the others
                           // in flight; 1 fetches nothing ahead
  BackwardOrder order = BackwardOrder::kKeysOuter;
  // Attention's output is stored in the dtype: what GPUs' kernels round it to
  // before they read it. Else in fp32: backward takes rowsum(dO o) from it,
  // which must cancel against the blocks' own sums (rounded to bf16 it was the
  // largest error of a GPT's gradients, in k's bias).
  bool round_output = false;
  // Backward runs the first chunks again, in groups of `rerun_layers` layers,
  // from the group's input: causal, they need no other chunks. Only one group
  // at a time keeps anything else of them, so their free classes are dropped.
  // The other chunks drop theirs too, so that a kind of segment has the same
  // requests in every chunk.
  int64_t rerun_chunks = 0;
  int64_t rerun_layers = 1;
  int64_t ffn_chunk_rows = 0;   // rows of one FFN call; 0: half a chunk's
  int64_t loss_chunk_rows = 0;  // rows of logits at a time; 0: by cost
                                // (loss_rows.h)
  // Runs only chunks of the first and of the last group of the loss, two at
  // least (`--probe`): every segment kind and all memory, but a step's numbers
  // (loss, gradients) mean nothing.
  bool probe = false;
};

// InvalidArgument, one line: what is out of range, its value, the limit.
absl::Status Validate(const StreamOptions& options);

}  // namespace sluice::stream
