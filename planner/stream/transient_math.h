// Simulates the tensors that client/torch/math allocates and frees. Each
// function here has the name of the function it simulates. A returned tensor
// lives as long as the original's. Operands are given as rows and widths.
//
// The temporaries of ATen's CPU kernels are included: operands converted to
// fp32 where types differ, statistics of norms, workspaces.
//
// Thread safety: none.
#pragma once

#include <initializer_list>

#include "planner/stream/classes.h"
#include "planner/stream/model_shape.h"
#include "planner/stream/transient_heap.h"
#include "planner/stream/transients.h"

namespace sluice::stream {

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
  // Where a result goes: to a new tensor, or to existing memory of the caller.
  enum class Place { kNew, kGiven };
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
                             Place place = Place::kNew) const;
  Tensor ActivationForward(int64_t rows, Place place = Place::kNew) const;
  // Returns the one gradient that does not reuse the memory of its output's
  // gradient.
  Tensor ActivationBackward(int64_t rows) const;

  // --- RoPE -----------------------------------------------------------------
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
  void Attend(const BlockSize& block) const;
  void Backward(const BlockSize& block) const;

  TransientHeap& heap_;
  const ModelShape& model_;
  const int64_t element_, output_element_;
  const Kernels kernels_;
};

}  // namespace sluice::stream
