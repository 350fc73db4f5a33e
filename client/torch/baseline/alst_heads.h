// Cuts this rank's rows in alst into tiles and exchanges heads: q, k and v are
// projected and rotated tile by tile in token layout, then exchanged whole, one
// after the other (Ulysses). Internal to client/torch/baseline.
//
// Throws c10::Error and StatusException. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "client/torch/baseline/baseline.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/ranks/ulysses.h"

namespace sluice::runtime::baseline {

// A tile of rows.
struct Tile {
  int64_t begin, count;
  at::Tensor Of(const at::Tensor& t) const { return t.narrow(0, begin, count); }
};

// The projections, with all heads on the token side or all rows on the head
// side.
struct Projected {
  at::Tensor q, k, v;
};

class AlstHeads {
 public:
  explicit AlstHeads(const BaselineOptions& options);

  // Returns the tiles of this rank's rows, in order.
  std::vector<Tile> Tiles() const;
  // Returns the first row's position in the sequence.
  int64_t first_position() const { return layout_.local_offset(0, rank_); }
  // Returns true with one rank, where both sides are the same tensor.
  bool local() const { return exchange_.local(); }

  at::Tensor ToHeads(HeadKind kind, at::Tensor token_side);
  at::Tensor ToTokens(HeadKind kind, at::Tensor head_side);
  // ProjectTile projects a tile's q, k and v, in token layout; RotateTile
  // applies RoPE to them.
  Projected ProjectTile(const at::Tensor& x, const Tile& tile,
                        const LayerTensors& w) const;
  Projected RotateTile(Projected heads, const Tile& tile) const;
  // Projects the whole sequence, in head layout.
  Projected Project(const at::Tensor& x, const LayerTensors& w);

 private:
  at::Tensor TokenSide(HeadKind kind, const at::Tensor& like) const;

  const BaselineOptions& options_;
  const stream::ModelShape& model_;
  const int ranks_, rank_;
  const stream::ChunkLayout layout_;
  const RowRuns runs_;
  const int64_t rows_;
  HeadExchange exchange_;
};

}  // namespace sluice::runtime::baseline
