// The options of one rank's streamed step, the folder's input.
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

// Which side of backward's attention blocks stays in HBM while the other side
// is streamed. With keys outer (FPDT), k_i and v_i stay and their gradients are
// summed in HBM; for each later query chunk q, o, lse and dO are fetched, and
// dq is fetched and sent. Queries outer is the reverse: k, v, dk and dv are
// copied, which is less if few kv heads serve many q heads.
enum class BackwardOrder { kKeysOuter, kQueriesOuter };

// Returns whether a step of that order stores the class. The gradients of the
// outer side stay in HBM and are not a class.
bool HasClass(BackwardOrder order, Class which);

struct StreamOptions {
  ModelShape model;
  ChunkLayout layout{0, 1, 1};
  int rank = 0;
  Dtype dtype = Dtype::kFp32;
  // Token fractions. A free class that is not in `fractions` swaps the fraction
  // `alpha` and keeps nothing (MEMO's policy).
  double alpha = 1.0;
  FractionMap fractions;
  // Slots of the block ring: one is in use, the others are being copied.
  int prefetch_depth = 2;
  BackwardOrder order = BackwardOrder::kKeysOuter;
  // If true, attention's output is stored in the dtype, to which GPU kernels
  // round it anyway, else in fp32. Backward computes rowsum(dO o), which must
  // cancel against the blocks' own sums; an o rounded to bf16 causes the
  // largest error of a GPT's gradients, in k's bias.
  bool round_output = false;
  // Backward reruns forward for this many first chunks, in groups of
  // `rerun_layers` layers, from the group's input. (Attention is causal, so
  // these chunks need no others.) Only one group at a time stores their
  // tensors. All chunks drop their free classes, so that a kind of segment has
  // the same requests in every chunk.
  int64_t rerun_chunks = 0;
  int64_t rerun_layers = 1;
  int64_t ffn_chunk_rows = 0;   // rows per FFN call; 0 for half of a chunk's
  int64_t loss_chunk_rows = 0;  // rows of logits at a time; 0 for LossRows
  // Runs only the chunks of the loss's first group, at least two, and of its
  // last group (`--probe`). That runs every segment kind and uses a full step's
  // memory, but the loss and the gradients mean nothing.
  bool probe = false;
};

// Returns InvalidArgument with the wrong option, its value and its limit.
absl::Status Validate(const StreamOptions& options);

}  // namespace sluice::stream
