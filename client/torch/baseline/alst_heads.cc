#include "client/torch/baseline/alst_heads.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <utility>

#include "client/torch/baseline/baseline_ops.h"
#include "client/torch/baseline/baseline_parts.h"
#include "client/torch/exceptions.h"

namespace sluice::runtime::baseline {

AlstHeads::AlstHeads(const BaselineOptions& options)
    : options_(options),
      model_(options.model),
      ranks_(options.collectives ? options.collectives->world_size() : 1),
      rank_(options.collectives ? options.collectives->rank() : 0),
      layout_(options.seq_len, options.seq_len, ranks_),
      runs_(RowRuns::Whole(layout_, 0)),
      rows_(layout_.local_rows(0, rank_)),
      exchange_(model_.heads, model_.kv_heads, ranks_, rank_,
                options.collectives) {}

std::vector<Tile> AlstHeads::Tiles() const {
  // As in the original, which cuts a sequence into ceil(rows / hidden) shards.
  const int64_t step =
      options_.tile_rows > 0 ? options_.tile_rows : model_.hidden;
  std::vector<Tile> tiles;
  for (int64_t begin = 0; begin < rows_; begin += step) {
    tiles.push_back({begin, std::min(step, rows_ - begin)});
  }
  return tiles;
}

at::Tensor AlstHeads::TokenSide(HeadKind kind, const at::Tensor& like) const {
  const int64_t heads =
      kind == HeadKind::kQuery ? model_.heads : model_.kv_heads;
  return at::empty({rows_, heads, model_.head_dim()}, like.options());
}

at::Tensor AlstHeads::ToHeads(HeadKind kind, at::Tensor token_side) {
  if (exchange_.local()) return token_side;
  const int64_t heads = kind == HeadKind::kQuery
                            ? exchange_.heads().q_per_rank
                            : exchange_.heads().kv_per_rank;
  at::Tensor head_side = at::empty({options_.seq_len, heads, model_.head_dim()},
                                   token_side.options());
  ThrowIfError(exchange_.ToHeads(runs_, {{kind, token_side, head_side}}));
  return head_side;
}

at::Tensor AlstHeads::ToTokens(HeadKind kind, at::Tensor head_side) {
  if (exchange_.local()) return head_side;
  at::Tensor token_side = TokenSide(kind, head_side);
  ThrowIfError(exchange_.ToTokens(runs_, {{kind, token_side, head_side}}));
  return token_side;
}

Projected AlstHeads::ProjectTile(const at::Tensor& x, const Tile& tile,
                                 const LayerTensors& w) const {
  const int64_t dim = model_.head_dim();
  const at::Tensor h = Norm(model_, x, w.norm1_weight, w.norm1_bias);
  const auto heads = [&](const at::Tensor& weight, const at::Tensor& bias) {
    return at::linear(h, weight, bias)
        .view({tile.count, weight.size(0) / dim, dim});
  };
  return {heads(w.q_weight, w.q_bias), heads(w.k_weight, w.k_bias),
          heads(w.v_weight, w.v_bias)};
}

Projected AlstHeads::RotateTile(Projected heads, const Tile& tile) const {
  if (!model_.rope) return heads;
  const Rotation rotation =
      MakeRotation(layout_.local_offset(0, rank_) + tile.begin, tile.count,
                   model_.head_dim(), model_.rope->theta, options_.device);
  return {Rotate(heads.q, rotation), Rotate(heads.k, rotation), heads.v};
}

Projected AlstHeads::Project(const at::Tensor& x, const LayerTensors& w) {
  Projected all{TokenSide(HeadKind::kQuery, x),
                TokenSide(HeadKind::kKeyValue, x),
                TokenSide(HeadKind::kKeyValue, x)};
  for (const Tile& tile : Tiles()) {
    const Projected part = RotateTile(ProjectTile(tile.Of(x), tile, w), tile);
    tile.Of(all.q).copy_(part.q);
    tile.Of(all.k).copy_(part.k);
    tile.Of(all.v).copy_(part.v);
  }
  all.q = ToHeads(HeadKind::kQuery, std::move(all.q));
  all.k = ToHeads(HeadKind::kKeyValue, std::move(all.k));
  all.v = ToHeads(HeadKind::kKeyValue, std::move(all.v));
  return all;
}

}  // namespace sluice::runtime::baseline
