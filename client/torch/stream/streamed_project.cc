// Shared by forward and recomputation: projections, and the copies of q, k, v
// to host memory and back.
#include "client/torch/stream/stream_state.h"

namespace sluice::runtime {

at::Tensor ProjectOne(const StreamState& state, const LayerTensors& weights,
                      stream::Class which, const at::Tensor& normed,
                      const RopeTables& tables, const at::Tensor& to) {
  const bool query = which == stream::Class::kQ,
             key = which == stream::Class::kK;
  const at::Tensor& weight = query ? weights.q_weight
                             : key ? weights.k_weight
                                   : weights.v_weight;
  const at::Tensor& bias = query ? weights.q_bias
                           : key ? weights.k_bias
                                 : weights.v_bias;
  const stream::ModelShape& model = state.model();
  const int64_t rows = normed.size(0);
  const at::Tensor out =
      LinearForward(normed, weight, bias,
                    to.defined() ? to.view({rows, weight.size(0)}) : to)
          .view({rows, query ? model.heads : model.kv_heads, state.shape.dim});
  if (!state.rope() || !(query || key)) return out;
  return ApplyRope(out, tables, /*inverse=*/false, state.dtype);
}

Projected Project(const StreamState& state, const LayerTensors& weights,
                  const at::Tensor& normed, int64_t m, const Projected& to) {
  const RopeTables tables = state.Rope(m, 0);
  return {ProjectOne(state, weights, stream::Class::kQ, normed, tables, to.q),
          ProjectOne(state, weights, stream::Class::kK, normed, tables, to.k),
          ProjectOne(state, weights, stream::Class::kV, normed, tables, to.v)};
}

void FetchHeads(StreamState& state, int64_t layer, stream::Class which,
                int64_t m, Fetch& fetch) {
  if (state.shape.resident(which)) {
    return fetch.Whole(state.store.saved(layer, which, m));
  }
  const int64_t row_bytes = state.shape.row_bytes(which);
  fetch.Field(state.shape.chunk_bytes(which, m));
  for (const stream::RowPiece& piece : state.shape.pieces(which, m)) {
    ChunkBuffer& from = piece.stored ? state.store.saved(layer, which, m)
                                     : state.store.dropped(which, m);
    fetch.Piece(from, piece.place * row_bytes, piece.row * row_bytes,
                piece.rows * row_bytes);
  }
}

void SendHeads(StreamState& state, int64_t layer, stream::Class which,
               int64_t m, const at::Tensor& heads, bool with_dropped) {
  const int64_t row_bytes = state.shape.row_bytes(which);
  for (const stream::RowPiece& piece : state.shape.pieces(which, m)) {
    if (!piece.stored && !with_dropped) continue;
    ChunkBuffer& to = piece.stored ? state.store.saved(layer, which, m)
                                   : state.store.dropped(which, m);
    state.staging().Send(heads.narrow(0, piece.row, piece.rows), to,
                         piece.place * row_bytes);
  }
}

}  // namespace sluice::runtime
