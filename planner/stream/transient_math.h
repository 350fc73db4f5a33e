// Simulates the tensors that client/torch/math allocates and frees, on a heap
// that only counts. Each function here has the name of the function it
// simulates, and its result lives as long as the original's. Operands are given
// as rows and widths. The temporaries of ATen's CPU kernels are included:
// operands converted to fp32 where types differ, statistics of norms,
// workspaces.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <set>
#include <utility>

#include "planner/stream/model_shape.h"
#include "planner/stream/transients.h"

namespace sluice::stream {

// The region allocator's blocks are whole lines of this size.
inline constexpr int64_t kHeapLine = 64;

// A heap without memory, which counts live bytes and their peak. Code that
// makes the real code's allocations on it, in the same order, finds the real
// heap's peak.
class TransientHeap {
 public:
  // A tensor's memory, freed on destruction. A default-constructed Tensor is a
  // view of other memory.
  class Tensor {
   public:
    Tensor() = default;
    Tensor(TransientHeap* heap, int64_t bytes) : heap_(heap), bytes_(bytes) {}
    Tensor(Tensor&& other) noexcept
        : heap_(std::exchange(other.heap_, nullptr)), bytes_(other.bytes_) {}
    Tensor& operator=(Tensor&& other) noexcept {
      Free();
      heap_ = std::exchange(other.heap_, nullptr);
      bytes_ = other.bytes_;
      return *this;
    }
    ~Tensor() { Free(); }
    void Free() {
      if (heap_ != nullptr) heap_->alive_ -= bytes_;
      heap_ = nullptr;
    }

   private:
    TransientHeap* heap_ = nullptr;
    int64_t bytes_ = 0;
  };

  TransientHeap() = default;
  TransientHeap(const TransientHeap&) = delete;

  [[nodiscard]] Tensor Take(int64_t bytes) {
    const int64_t whole = (bytes + kHeapLine - 1) / kHeapLine * kHeapLine;
    alive_ += whole;
    peak_ = std::max(peak_, alive_);
    return Tensor(this, whole);
  }

  // Allocates and frees a temporary at once.
  void Pass(int64_t bytes) { const Tensor block = Take(bytes); }

  int64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = alive_; }

 private:
  int64_t alive_ = 0, peak_ = 0;
};

class TransientMath {
 public:
  using Tensor = TransientHeap::Tensor;
  // `element` is the bytes of an element of weights and activations,
  // `output_element` of attention's stored output.
  TransientMath(TransientHeap* heap, const ModelShape& model, int64_t element,
                int64_t output_element, const Kernels& kernels)
      : heap_(*heap),
        model_(model),
        element_(element),
        output_element_(output_element),
        kernels_(kernels) {}

  Tensor Make(int64_t elements) const {
    return heap_.Take(elements * element_);
  }

  Tensor MakeFp32(int64_t elements) const { return heap_.Take(elements * 4); }
  // Simulate tensor.to(float) and back. In fp32 they allocate nothing.
  Tensor ToFp32(int64_t elements) const {
    return narrow() ? MakeFp32(elements) : Tensor();
  }

  Tensor FromFp32(int64_t elements) const {
    return narrow() ? Make(elements) : Tensor();
  }

  // Simulates a.add_(b) and similar operations on an fp32 and a narrow tensor.
  void Mixed(int64_t elements) const {
    if (narrow()) heap_.Pass(elements * 4);
  }

  // --- token_math.h; `rows` of hidden states --------------------------------
  enum class Place { kNew, kGiven };  // kGiven: existing memory of the caller
  Tensor NormForward(int64_t rows, Place place = Place::kNew) const {
    if (model_.norm == NormKind::kRmsNorm) {
      return MakeAt(place, rows * model_.hidden);
    }
    Tensor out = Make(rows * model_.hidden);
    const Tensor mean = Make(rows), scale = Make(rows);
    if (place == Place::kGiven) return {};
    return out;
  }

  // `gradients` is the number of tensors that dY is summed from.
  void NormBackward(int64_t rows, int gradients, bool residual) const {
    if (model_.norm == NormKind::kRmsNorm) return RmsNormBackward(rows);
    const int64_t size = rows * model_.hidden;
    const Tensor sum = ToFp32(size);
    if (gradients > 1) Mixed(size);
    const Tensor dx = LayerNormBackward(rows);
    if (residual) Mixed(size);
  }

  Tensor LinearForward(int64_t rows, int64_t in, int64_t out,
                       Place place = Place::kNew) const {
    Tensor product = MakeAt(place, rows * out);
    if (narrow() && kernels_.packs_bf16 && rows * in * out > kLeastPacked) {
      heap_.Pass(PackedBytes(in) * kernels_.threads);
    }
    return product;
  }

  struct Linear {
    int64_t out;
    bool bias;
  };
  void LinearBackwardWeight(int64_t rows, int64_t in,
                            std::initializer_list<Linear> layers) const {
    if (rows == 0) return;
    const Tensor x = ToFp32(rows * in);
    for (const Linear& layer : layers) {
      const Tensor dy = ToFp32(rows * layer.out);
      if (layer.bias) heap_.Pass(layer.out * 4);
    }
  }

  Tensor LinearBackwardInput(int64_t rows, int64_t in, int64_t out,
                             Place place = Place::kNew) const {
    return LinearForward(rows, out, in, place);
  }

  Tensor ActivationForward(int64_t rows, Place place = Place::kNew) const {
    return MakeAt(place, rows * model_.ffn);
  }

  // Returns the gradient that needs new memory. The up projection's, if any, is
  // written over the output's gradient.
  Tensor ActivationBackward(int64_t rows) const {
    return Make(rows * model_.ffn);
  }

  // --- RoPE -----------------------------------------------------------------
  struct RopeTables {
    Tensor cos, sin;
  };
  // Angles are in fp64.
  RopeTables MakeRopeTables(int64_t rows) const {
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

  // --- token_math.h: the loss ------------------------------------------------
  // The first call has the most rows, so only it is simulated.
  Tensor LossForwardBackward(int64_t rows, int64_t rows_at_once) const {
    Tensor gradient = Make(rows * model_.hidden);
    rows = std::min(rows, rows_at_once);
    const Tensor d_logits = LinearForward(rows, model_.hidden, model_.vocab);
    {
      const Tensor losses = MakeFp32(rows), sum = heap_.Take(kNumber);
      heap_.Pass(rows * kNumber);  // summed in fp64
    }
    LinearBackwardWeight(rows, model_.hidden, {{model_.vocab, false}});
    LinearBackwardInput(rows, model_.hidden, model_.vocab, Place::kGiven);
    return gradient;
  }

  // --- attention_blocks.h ---------------------------------------------------
  struct BlockSize {
    int64_t queries, keys, q_heads, kv_heads;
  };
  void AttendBlock(const BlockSize& b, bool causal) const {
    if (b.queries == 0) return;
    const Tensor q = ToFp32(Queries(b)), k = ToFp32(Keys(b)),
                 v = ToFp32(Keys(b));
    if (!causal) return Attend(b);
    Causal(b, [this](const BlockSize& part) { Attend(part); });
  }

  void AttendBlockBackward(const BlockSize& b, bool causal) const {
    if (b.queries == 0) return;
    const Tensor q = ToFp32(Queries(b)), d_o = ToFp32(Queries(b)),
                 o = output_element_ < 4 ? MakeFp32(Queries(b)) : Tensor(),
                 k = ToFp32(Keys(b)), v = ToFp32(Keys(b));
    if (!causal) return Backward(b);
    Causal(b, [this](const BlockSize& part) { Backward(part); });
  }

 private:
  static constexpr int64_t kIndex = 8;   // bytes of an int64 or fp64 element
  static constexpr int64_t kNumber = 8;  // bytes of a scalar tensor

  // attention_blocks.cc cuts causal blocks down to this many rows.
  static constexpr int64_t kCausalRows = 256;
  static constexpr int64_t kTileRows = 64;

  // ATen's CPU attention processes queries and keys in tiles.
  static int64_t QueryTile(int64_t queries) {
    const int64_t tile = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
    return std::min(tile, queries);
  }

  static int64_t KeyTile(int64_t keys) { return std::min<int64_t>(512, keys); }

  // ATen gives a bf16 product with more operations than this to oneDNN, which
  // packs a panel of 64 columns in whole tiles of 32 rows, and tiles of sums.
  // Rows that do not fill a tile are copied to a new tile.
  static constexpr int64_t kLeastPacked = 16 * 16 * 16;
  static int64_t PackedBytes(int64_t in) {
    const int64_t tiles = (in + 31) / 32;
    const bool copied = in > 32 && in % 32 != 0;
    return tiles * 32 * 64 * 2 + (copied ? 6 : 5) * 1024;
  }

  bool narrow() const { return element_ < 4; }
  Tensor MakeAt(Place place, int64_t elements) const {
    return place == Place::kGiven ? Tensor() : Make(elements);
  }

  // Cuts rows as client/torch/math/token_math.cc does.
  void RmsNormBackward(int64_t rows) const {
    const int64_t rows_in_part = std::max<int64_t>(16, (rows + 511) / 512);
    const int64_t parts = (rows + rows_in_part - 1) / rows_in_part;
    const Tensor sums = MakeFp32(parts * model_.hidden);
    heap_.Pass(model_.hidden * 4);  // their sum
  }

  Tensor LayerNormBackward(int64_t rows) const {
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

  // Cuts a causal block as attention_blocks.cc does: first into its queries
  // with all earlier keys, then the causal square by halves down to
  // kCausalRows. Calls `call` once per size; there are few sizes, because
  // halves are whole tiles.
  static void Causal(BlockSize b, auto call) {
    const int64_t before = b.keys - b.queries;
    if (before > 0) call({b.queries, before, b.q_heads, b.kv_heads});
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

  int64_t Queries(const BlockSize& b) const {
    return b.queries * b.q_heads * model_.head_dim();
  }

  int64_t Keys(const BlockSize& b) const {
    return b.keys * b.kv_heads * model_.head_dim();
  }

  void Attend(const BlockSize& b) const {
    const Tensor output = MakeFp32(Queries(b)),
                 lse = MakeFp32(b.queries * b.q_heads);
    const int64_t tile = QueryTile(b.queries);
    // A tile's scores, their maximum and sum, and the tile's output.
    heap_.Pass(4 * kernels_.threads * tile *
               (KeyTile(b.keys) + 2 + model_.head_dim()));
  }

  void Backward(const BlockSize& b) const {
    const Tensor dq = MakeFp32(Queries(b)), dk = MakeFp32(Keys(b)),
                 dv = MakeFp32(Keys(b));
    const int64_t tile = QueryTile(b.queries);
    // A tile's scores, their gradients, and rowsum(dO o).
    const Tensor scores =
        MakeFp32(2 * kernels_.threads * tile * KeyTile(b.keys));
    heap_.Pass(tile * 4);
  }

  TransientHeap& heap_;
  const ModelShape& model_;
  const int64_t element_, output_element_;
  const Kernels kernels_;
};

}  // namespace sluice::stream
