#include "planner/stream/transient_math.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace sluice::stream {
namespace {

using Tensor = TransientHeap::Tensor;

constexpr int64_t kIndex = 8;   // bytes of an int64 or fp64 element
constexpr int64_t kNumber = 8;  // bytes of a scalar tensor

// attention_blocks.cc cuts causal blocks down to this many rows.
constexpr int64_t kCausalRows = 256;
constexpr int64_t kTileRows = 64;

// ATen's CPU attention processes queries and keys in tiles.
int64_t QueryTile(int64_t queries) {
  const int64_t tile = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
  return std::min(tile, queries);
}
int64_t KeyTile(int64_t keys) { return std::min<int64_t>(512, keys); }

// ATen gives a bf16 product with more operations than this to oneDNN, which
// packs a panel of 64 columns in whole tiles of 32 rows, and tiles of sums.
// Rows that do not fill a tile are copied to a new tile.
constexpr int64_t kLeastPacked = 16 * 16 * 16;
int64_t PackedBytes(int64_t in) {
  const int64_t tiles = (in + 31) / 32;
  const bool copied = in > 32 && in % 32 != 0;
  return tiles * 32 * 64 * 2 + (copied ? 6 : 5) * 1024;
}

}  // namespace

// --- token_math --------------------------------------------------------------

Tensor TransientMath::NormForward(int64_t rows, Place place) const {
  if (model_.norm == NormKind::kRmsNorm) {
    return MakeAt(place, rows * model_.hidden);
  }
  Tensor out = Make(rows * model_.hidden);
  const Tensor mean = Make(rows), scale = Make(rows);
  if (place == Place::kGiven) return {};
  return out;
}

// Cuts rows as client/torch/math/token_math.cc does.
void TransientMath::RmsNormBackward(int64_t rows) const {
  const int64_t rows_in_part = std::max<int64_t>(16, (rows + 511) / 512);
  const int64_t parts = (rows + rows_in_part - 1) / rows_in_part;
  const Tensor sums = MakeFp32(parts * model_.hidden);
  heap_.Pass(model_.hidden * 4);  // their sum
}

Tensor TransientMath::LayerNormBackward(int64_t rows) const {
  const int64_t size = rows * model_.hidden;
  const Tensor x = ToFp32(size), weight = ToFp32(model_.hidden),
               bias = ToFp32(model_.hidden);
  const Tensor out = MakeFp32(size), mean = MakeFp32(rows),
               scale = MakeFp32(rows);
  Tensor dx = MakeFp32(size);
  const Tensor dweight = MakeFp32(model_.hidden),
               dbias = MakeFp32(model_.hidden);
  // Partial sums of each thread.
  heap_.Pass(2 * model_.hidden * 4 * kernels_.threads);
  return dx;
}

void TransientMath::NormBackward(int64_t rows, int gradients,
                                 bool residual) const {
  if (model_.norm == NormKind::kRmsNorm) return RmsNormBackward(rows);
  const int64_t size = rows * model_.hidden;
  const Tensor sum = ToFp32(size);
  if (gradients > 1) Mixed(size);
  const Tensor dx = LayerNormBackward(rows);
  if (residual) Mixed(size);
}

Tensor TransientMath::LinearForward(int64_t rows, int64_t in, int64_t out,
                                    Place place) const {
  Tensor product = MakeAt(place, rows * out);
  if (narrow() && kernels_.packs_bf16 && rows * in * out > kLeastPacked) {
    heap_.Pass(PackedBytes(in) * kernels_.threads);
  }
  return product;
}

void TransientMath::LinearBackwardWeight(
    int64_t rows, int64_t in, std::initializer_list<Linear> layers) const {
  if (rows == 0) return;
  const Tensor x = ToFp32(rows * in);
  for (const Linear& layer : layers) {
    const Tensor dy = ToFp32(rows * layer.out);
    if (layer.bias) heap_.Pass(layer.out * 4);
  }
}

// --- rope

// Angles are in fp64.
TransientMath::RopeTables TransientMath::MakeRopeTables(int64_t rows) const {
  RopeTables tables;
  if (!model_.rope) return tables;
  const int64_t half = model_.head_dim() / 2;
  const Tensor pair = heap_.Take(half * kIndex);
  const Tensor frequency = [&] {
    const Tensor power = [&] {
      const Tensor number = heap_.Take(kNumber);
      return heap_.Take(half * kIndex);
    }();
    Tensor out = heap_.Take(half * kIndex);
    heap_.Pass(kNumber);
    return out;
  }();
  const Tensor position = heap_.Take(rows * kIndex);
  const Tensor angle = heap_.Take(rows * half * kIndex);
  const Tensor cos = heap_.Take(rows * half * kIndex);
  tables.cos = MakeFp32(rows * half);
  const Tensor sin = heap_.Take(rows * half * kIndex);
  tables.sin = MakeFp32(rows * half);
  return tables;
}

// --- chunked_loss

void TransientMath::LossOfRows(int64_t rows) const {
  const Tensor d_logits = LinearForward(rows, model_.hidden, model_.vocab);
  {
    const Tensor losses = MakeFp32(rows), sum = heap_.Take(kNumber);
    heap_.Pass(rows * kNumber);  // summed in fp64
  }
  LinearBackwardWeight(rows, model_.hidden, {{model_.vocab, false}});
  LinearBackwardInput(rows, model_.hidden, model_.vocab, Place::kGiven);
}

// The first call has the most rows, so only it is simulated.
Tensor TransientMath::LossForwardBackward(int64_t rows,
                                          int64_t rows_at_once) const {
  Tensor gradient = Make(rows * model_.hidden);
  LossOfRows(std::min(rows, rows_at_once));
  return gradient;
}

// --- attention_blocks, all in fp32

void TransientMath::Attend(const BlockSize& b) const {
  const Tensor output = MakeFp32(Queries(b)),
               lse = MakeFp32(b.queries * b.q_heads);
  const int64_t tile = QueryTile(b.queries);
  // A tile's scores, their maximum and sum, and the tile's output.
  heap_.Pass(4 * kernels_.threads * tile *
             (KeyTile(b.keys) + 2 + model_.head_dim()));
}

void TransientMath::Backward(const BlockSize& b) const {
  const Tensor dq = MakeFp32(Queries(b)), dk = MakeFp32(Keys(b)),
               dv = MakeFp32(Keys(b));
  const int64_t tile = QueryTile(b.queries);
  // A tile's scores, their gradients, and rowsum(dO o).
  const Tensor scores = MakeFp32(2 * kernels_.threads * tile * KeyTile(b.keys));
  heap_.Pass(tile * 4);
}

// Calls `call` for the blocks into which a causal block is halved, down to a
// few rows. Halves are whole tiles, so there are few sizes, and one call per
// size is enough.
void Causal(TransientMath::BlockSize b, auto call) {
  std::set<int64_t> sizes = {b.queries};
  while (!sizes.empty()) {
    const int64_t rows = sizes.extract(std::prev(sizes.end())).value();
    b.queries = b.keys = rows;
    if (rows > kCausalRows) {
      b.keys = ((rows + 1) / 2 + kTileRows - 1) / kTileRows * kTileRows;
      b.queries = rows - b.keys;
      sizes.insert({b.keys, b.queries});
    }
    call(b);
  }
}

// Calls `call` for the causal block, and for the block of its queries with the
// keys before them.
void BeforeAndCausal(TransientMath::BlockSize b, auto call) {
  const int64_t before = b.keys - b.queries;
  if (before > 0) call({b.queries, before, b.q_heads, b.kv_heads});
  Causal(b, call);
}

void TransientMath::AttendBlock(const BlockSize& b, bool causal) const {
  if (b.queries == 0) return;
  const Tensor q = ToFp32(Queries(b)), k = ToFp32(Keys(b)), v = ToFp32(Keys(b));
  if (!causal) return Attend(b);
  BeforeAndCausal(b, [this](const BlockSize& part) { Attend(part); });
}

void TransientMath::AttendBlockBackward(const BlockSize& b, bool causal) const {
  if (b.queries == 0) return;
  const Tensor q = ToFp32(Queries(b)), d_o = ToFp32(Queries(b)),
               o = output_element_ < 4 ? MakeFp32(Queries(b)) : Tensor(),
               k = ToFp32(Keys(b)), v = ToFp32(Keys(b));
  if (!causal) return Backward(b);
  BeforeAndCausal(b, [this](const BlockSize& part) { Backward(part); });
}

}  // namespace sluice::stream
