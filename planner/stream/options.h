// The options that determine the arithmetic of one rank's streamed step: model,
// layout, and how the step is cut. The run fills them from flags or a plan, the
// desk from a question; everything in this folder follows from them.
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

// Which side of backward's attention blocks stays while the other is streamed.
// Keys outer: k_i, v_i stay and their gradients are summed in HBM; for each
// later query chunk q, o, lse and dO are fetched, and dq is fetched and sent
// (FPDT). Queries outer: the reverse; k, v, dk and dv are copied, which is less
// if few kv heads serve many q heads.
enum class BackwardOrder { kKeysOuter, kQueriesOuter };

// Returns whether a step of that order has the class. Gradients of the side
// that stays are not a class.
bool HasClass(BackwardOrder order, Class which);

struct StreamOptions {
  ModelShape model;
  ChunkLayout layout{0, 1, 1};
  int rank = 0;
  Dtype dtype = Dtype::kFp32;
  // Token fractions of the free classes (fractions.h). Classes not named swap
  // `alpha` and keep nothing (MEMO's policy).
  double alpha = 1.0;
  FractionMap fractions;
  // Slots of the block ring: one in use, the others in flight. 1: no prefetch.
  int prefetch_depth = 2;
  BackwardOrder order = BackwardOrder::kKeysOuter;
  // True: attention's output is stored in the dtype, to which GPU kernels round
  // it before they read it. False: in fp32, because backward computes rowsum(dO
  // o) from it, which must cancel against the blocks' own sums. (Rounded to
  // bf16, it was the largest error of a GPT's gradients, in k's bias.)
  bool round_output = false;
  // Backward reruns the first chunks, in groups of `rerun_layers` layers, from
  // the group's input; attention is causal, so they need no other chunks. Only
  // one group at a time keeps other tensors of them, so their free classes are
  // dropped. The other chunks drop theirs too, so that a kind of segment has
  // the same requests in every chunk.
  int64_t rerun_chunks = 0;
  int64_t rerun_layers = 1;
  int64_t ffn_chunk_rows = 0;   // rows per FFN call; 0: half of a chunk's
  int64_t loss_chunk_rows = 0;  // rows of logits at a time; 0: by cost
                                // (loss_rows.h)
  // Runs only chunks of the first and of the last group of the loss, two at
  // least (`--probe`): every segment kind and all memory, but a step's numbers
  // (loss, gradients) mean nothing.
  bool probe = false;
};

// InvalidArgument, one line: the option out of range, its value and the limit.
absl::Status Validate(const StreamOptions& options);

}  // namespace sluice::stream
