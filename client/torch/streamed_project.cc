// What forward and recomputation share: projections, and q, k, v on their way
// to host memory and back.
#include "client/torch/stream_context.h"

namespace sluice::runtime {

Projected Project(const StreamState& state, const LayerTensors& weights,
                  const at::Tensor& normed, int64_t m, int64_t skip) {
  const int64_t rows = normed.size(0), dim = state.shape.dim;
  const ModelConfig& model = state.options.model;
  const auto project = [&](const at::Tensor& weight, const at::Tensor& bias,
                           int64_t heads) {
    return LinearForward(normed, weight, bias).view({rows, heads, dim});
  };
  Projected out{project(weights.q_weight, weights.q_bias, model.heads),
                project(weights.k_weight, weights.k_bias, model.kv_heads),
                project(weights.v_weight, weights.v_bias, model.kv_heads)};
  if (state.rope()) {
    const RopeTables tables = state.Rope(m, skip);
    ApplyRope(out.q, tables);
    ApplyRope(out.k, tables);
  }
  return out;
}

void FetchHeads(StreamState& state, int64_t layer, Saved which, int64_t m,
                Fetch& fetch) {
  const int64_t row_bytes = state.shape.saved(which).row_bytes;
  fetch.Field(state.shape.rows(m) * row_bytes);
  for (const RowPiece& piece : state.shape.pieces(m)) {
    HostBuffer& from = piece.kept ? state.store.saved(layer, which, m)
                                  : state.store.dropped(which, m);
    fetch.Piece(from, piece.stored_row * row_bytes, piece.row * row_bytes,
                piece.rows * row_bytes);
  }
}

void SendHeads(StreamState& state, int64_t layer, Saved which, int64_t m,
               const at::Tensor& heads, bool with_dropped) {
  const int64_t row_bytes = state.shape.saved(which).row_bytes;
  for (const RowPiece& piece : state.shape.pieces(m)) {
    if (!piece.kept && !with_dropped) continue;
    HostBuffer& to = piece.kept ? state.store.saved(layer, which, m)
                                : state.store.dropped(which, m);
    state.staging().Send(heads.narrow(0, piece.row, piece.rows), to,
                         piece.stored_row * row_bytes);
  }
}

}  // namespace sluice::runtime
