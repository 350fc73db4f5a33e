// Simulates the transient tensors of each segment of a streamed step, chunk by
// chunk (interface: transients.h).
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/stream/segments.h"
#include "planner/stream/stream_shape.h"
#include "planner/stream/transient_heap.h"
#include "planner/stream/transient_math.h"

namespace sluice::stream {

enum class Towards { kHeads, kTokens };

// Tensors that are exchanged between ranks together: `queries` tensors with q's
// heads and `keys` tensors with those of k and v.
struct Travellers {
  int queries = 0, keys = 0;
  int64_t dim = 0, element = 0;
};

// Simulates the segments of one chunk as client/torch/stream runs them
// (stream_state, streamed_forward, streamed_attention, streamed_backward,
// streamed_model). Tensors in rings, kept rows or states are
// not allocated from this heap.
class TransientSegments {
 public:
  using Tensor = TransientHeap::Tensor;
  using Place = TransientMath::Place;
  // All arguments but `m` must outlive the object.
  TransientSegments(const StreamShape& shape, const ModelShape& model,
                    const HeadLayout& heads, const Kernels& kernels, int64_t m)
      : model_(model),
        shape_(shape),
        heads_(heads),
        m_(m),
        local_(shape.local(m)),
        math_(&heap_, model_, shape.element, shape.output_element, kernels) {}

  // Returns the peak of the heap in a segment of chunk m.
  int64_t Peak(Segment which) {
    heap_.ResetPeak();
    Run(which);
    return heap_.peak();
  }

 private:
  void Run(Segment which);
  void QkvForward();
  void PostForward();
  void PostBackward();
  void QkvRecompute();
  void QkvBackward();
  void Loss();
  void EmbedBackward();

  // Steps that the segments consist of.
  Tensor Project(Class which, int64_t rows, Place place);
  struct Output {
    Tensor heads, tokens;
  };
  Output OutputHome();
  void FeedForward(int64_t row, int64_t rows);
  void FeedForwardAgain(int64_t row, int64_t rows);
  void FeedForwardBackward(int64_t rows, Tensor act);
  Tensor NormGradient(int64_t rows, int64_t width) {
    return math_.LinearBackwardInput(rows, hidden(), width);
  }

  // Exchange simulates the exchange of all rows of the chunk, ExchangeDropped
  // that of the dropped rows of a class.
  void Exchange(const Travellers& what, Towards where);
  void ExchangeDropped(Class which, const Travellers& what);
  // Allocates the messages of a head exchange (client/torch/ranks/ulysses.h),
  // with `rows[p]` rows of each rank p.
  void ExchangeRows(const std::vector<int64_t>& rows, const Travellers& what,
                    Towards where);
  Travellers Carry(int queries, int keys, int64_t element) const {
    return {queries, keys, shape_.dim, element};
  }
  Tensor Rows(Class which, int64_t first, int64_t count, auto again);
  // Decides like RowWriter::PlaceOf (client/torch/stream).
  Place PlaceOf(Class which, int64_t first, int64_t count) const;
  // With one rank nothing is exchanged: tensors in head layout are made in
  // place.
  Place HeadSide() const {
    return shape_.ranks == 1 ? Place::kGiven : Place::kNew;
  }
  void ForRows(auto body) const;

  // Return the widths of the hidden state, of all q heads and of all k heads.
  int64_t hidden() const { return model_.hidden; }
  int64_t query() const { return model_.query_width(); }
  int64_t key() const { return model_.key_width(); }
  TransientMath::BlockSize BlockOf(int64_t keys) const {
    return {shape_.queries(m_), keys, shape_.q_heads, shape_.kv_heads};
  }

  const ModelShape& model_;
  const StreamShape& shape_;
  const HeadLayout& heads_;
  const int64_t m_, local_;
  TransientHeap heap_;
  const TransientMath math_;
};

// Decides like RowReader: a view if all rows are kept or all are stored; else a
// new tensor with all the rows.
TransientHeap::Tensor TransientSegments::Rows(Class which, int64_t first,
                                              int64_t count, auto again) {
  const int64_t end = first + count;
  const int64_t kept = std::clamp(shape_.kept(which, m_), first, end);
  const int64_t present = std::clamp(shape_.present(which, m_), kept, end);
  if (kept == end || (kept == first && present == end)) return {};
  if (present == first) return again(count);
  Tensor rows = heap_.Take(count * shape_.row_bytes(which));
  if (end > present) const Tensor dropped = again(end - present);
  return rows;
}

void TransientSegments::ForRows(auto body) const {
  for (int64_t row = 0; row < local_; row += shape_.ffn_rows) {
    body(row, std::min(shape_.ffn_rows, local_ - row));
  }
}

}  // namespace sluice::stream
