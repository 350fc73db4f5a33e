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
  // `element` and `output_element`: bytes of an element of weights and
  // activations, and of attention's stored output.
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
  Tensor NormForward(int64_t rows, Place place = Place::kNew) const;
  // `gradients`: the number of parts that dY is summed from.
  void NormBackward(int64_t rows, int gradients, bool residual) const;
  Tensor LinearForward(int64_t rows, int64_t in, int64_t out,
                       Place place = Place::kNew) const;
  struct Linear {
    int64_t out;
    bool bias;
  };
  void LinearBackwardWeight(int64_t rows, int64_t in,
                            std::initializer_list<Linear> layers) const;
  Tensor LinearBackwardInput(int64_t rows, int64_t in, int64_t out,
                             Place place = Place::kNew) const {
    return LinearForward(rows, out, in, place);
  }
  Tensor ActivationForward(int64_t rows, Place place = Place::kNew) const {
    return MakeAt(place, rows * model_.ffn);
  }
  // Returns the one gradient that does not reuse the memory of its output's
  // gradient.
  Tensor ActivationBackward(int64_t rows) const {
    return Make(rows * model_.ffn);
  }

  // --- rope.h ---------------------------------------------------------------
  struct RopeTables {
    Tensor cos, sin;
  };
  RopeTables MakeRopeTables(int64_t rows) const;

  // --- chunked_loss.h -------------------------------------------------------
  Tensor LossForwardBackward(int64_t rows, int64_t rows_at_once) const;

  // --- attention_blocks.h ---------------------------------------------------
  struct BlockSize {
    int64_t queries, keys, q_heads, kv_heads;
  };
  void AttendBlock(const BlockSize& block, bool causal) const;
  void AttendBlockBackward(const BlockSize& block, bool causal) const;

 private:
  bool narrow() const { return element_ < 4; }
  Tensor MakeAt(Place place, int64_t elements) const {
    return place == Place::kGiven ? Tensor() : Make(elements);
  }
  void RmsNormBackward(int64_t rows) const;
  Tensor LayerNormBackward(int64_t rows) const;
  void LossOfRows(int64_t rows) const;
  // The elements of a block's queries and of its keys.
  int64_t Queries(const BlockSize& b) const {
    return b.queries * b.q_heads * model_.head_dim();
  }
  int64_t Keys(const BlockSize& b) const {
    return b.keys * b.kv_heads * model_.head_dim();
  }
  void Attend(const BlockSize& block) const;
  void Backward(const BlockSize& block) const;

  TransientHeap& heap_;
  const ModelShape& model_;
  const int64_t element_, output_element_;
  const Kernels kernels_;
};

}  // namespace sluice::stream
