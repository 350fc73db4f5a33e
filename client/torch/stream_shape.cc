#include "client/torch/stream_shape.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>

namespace sluice::runtime {
namespace {

// Logits of so many rows are about as large as two hidden states of a chunk
// (the paper's vocabulary / hidden * 2 loss chunks would be half of that).
int64_t DefaultLossRows(int64_t rows, int64_t hidden, int64_t vocab) {
  return std::clamp<int64_t>(rows * hidden * 2 / vocab, 1,
                             std::max<int64_t>(rows, 1));
}

std::vector<int64_t> ActiveChunks(int64_t chunks, bool probe) {
  std::vector<int64_t> active;
  for (int64_t m = 0; m < chunks; ++m) {
    if (!probe || m < 2 || m == chunks - 1) active.push_back(m);
  }
  return active;
}

}  // namespace

StreamShape::StreamShape(const StreamContext::Options& options)
    : layout(options.layout),
      rank(options.rank),
      ranks(options.layout.ranks()),
      layers(options.model.layers),
      hidden(options.model.hidden),
      ffn(options.model.ffn),
      vocab(options.model.vocab),
      dim(options.model.head_dim()),
      element(static_cast<int64_t>(c10::elementSize(options.dtype))),
      alpha(options.stream.alpha),
      prefetch_depth(options.stream.prefetch_depth),
      gated(options.model.arch == Arch::kLlama),
      active(ActiveChunks(options.layout.chunks(), options.stream.probe)) {
  const HeadLayout heads(options.model.heads, options.model.kv_heads, ranks);
  q_heads = heads.q_per_rank;
  kv_heads = heads.kv_per_rank;
  const int64_t rows = std::max<int64_t>(local(0), 1);
  ffn_rows = options.stream.ffn_chunk_rows > 0 ? options.stream.ffn_chunk_rows
                                               : (rows + 1) / 2;
  loss_rows = options.stream.loss_chunk_rows > 0
                  ? options.stream.loss_chunk_rows
                  : DefaultLossRows(rows, hidden, vocab);
}

int64_t StreamShape::kept_of(int64_t m, int64_t p) const {
  return std::llround(alpha * static_cast<double>(layout.local_rows(m, p)));
}

int64_t StreamShape::head_kept(int64_t m) const {
  int64_t sum = 0;
  for (int64_t p = 0; p < ranks; ++p) sum += kept_of(m, p);
  return sum;
}

std::vector<RowPiece> StreamShape::pieces(int64_t m) const {
  std::vector<RowPiece> pieces;
  int64_t row = 0, stored[2] = {0, 0};
  const auto add = [&](bool kept, int64_t rows) {
    if (rows == 0) return;
    if (!pieces.empty() && pieces.back().kept == kept) {
      pieces.back().rows += rows;
    } else {
      pieces.push_back({kept, row, rows, stored[kept]});
    }
    row += rows;
    stored[kept] += rows;
  };
  for (int64_t p = 0; p < ranks; ++p) {
    add(true, kept_of(m, p));
    add(false, layout.local_rows(m, p) - kept_of(m, p));
  }
  return pieces;
}

int64_t StreamShape::previous(int64_t m) const {
  int64_t before = -1;
  for (const int64_t i : active) {
    if (i < m) before = i;
  }
  return before;
}

SavedClass StreamShape::saved(Saved which) const {
  const int64_t wide = hidden * element;
  const int64_t up = ffn * element;
  switch (which) {
    case Saved::kNorm1:
      return {"norm1", false, false, wide};
    case Saved::kQ:
      return {"q", true, false, query_row_bytes()};
    case Saved::kK:
      return {"k", true, false, key_row_bytes()};
    case Saved::kV:
      return {"v", true, false, key_row_bytes()};
    case Saved::kO:
      return {"attention_output", true, true, output_row_bytes()};
    case Saved::kLse:
      return {"lse", true, true, q_heads * 4};
    case Saved::kX2:
      return {"attention_residual", false, false, wide};
    case Saved::kNorm2:
      return {"norm2", false, false, wide};
    case Saved::kUp:
      return {"ffn_up", false, false, up};
    case Saved::kGate:
      return {"ffn_gate", false, false, gated ? up : 0};
    case Saved::kAct:
      return {"ffn_activation", false, false, up};
  }
  return {};
}

int64_t StreamShape::saved_rows(Saved which, int64_t m) const {
  const SavedClass info = saved(which);
  if (info.whole) return rows(m);
  return info.head_layout ? head_kept(m) : kept(m);
}

RingSizes StreamShape::rings(Phase phase) const {
  const int64_t q = AlignSlot(rows(0) * query_row_bytes());
  const int64_t o = AlignSlot(rows(0) * output_row_bytes());
  const int64_t kv = 2 * AlignSlot(rows(0) * key_row_bytes());
  const int64_t lse = AlignSlot(rows(0) * q_heads * 4);
  const int64_t x = AlignSlot(hidden_bytes(0));
  const int64_t query_sum = AlignSlot(query_gradient_bytes(0));
  const auto kept_bytes = [&](Saved which) {
    return AlignSlot(kept(0) * saved(which).row_bytes);
  };
  const int64_t ffn_kept = kept_bytes(Saved::kX2) + kept_bytes(Saved::kNorm2) +
                           kept_bytes(Saved::kUp) + kept_bytes(Saved::kGate) +
                           kept_bytes(Saved::kAct);
  const int64_t norm1 = kept_bytes(Saved::kNorm1);
  const int64_t dropped = head_dropped(0);
  switch (phase) {
    case Phase::kForward:
      return {.staging = q + o + kv + lse + norm1 + ffn_kept + x,
              .inputs = x,
              .blocks = kv};
    case Phase::kTokens:
      return {.staging = q + x + AlignSlot(dropped * query_row_bytes()) +
                         2 * AlignSlot(dropped * key_row_bytes()),
              .inputs = 2 * x + o + ffn_kept};
    case Phase::kAttention:
      return {.staging = x,
              .inputs = 2 * x + norm1,
              .blocks = 2 * q + o + lse + query_sum,
              .keys = kv,
              .query_sum = query_sum,
              .key_sum = AlignSlot(rows(0) * kv_heads * dim * 4)};
  }
  return {};
}

int64_t StreamShape::ring_bytes() const {
  int64_t most = 0;
  for (const Phase phase : kPhases) {
    most = std::max(most, rings(phase).Total(prefetch_depth));
  }
  return most;
}

}  // namespace sluice::runtime
