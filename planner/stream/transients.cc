#include "planner/stream/transients.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "planner/stream/stream_shape.h"
#include "planner/stream/transient_math.h"

namespace sluice::stream {
namespace {

enum class Towards { kHeads, kTokens };

// Numbers of tensors exchanged together, with q's heads and with k's heads.
struct Travellers {
  int queries = 0, keys = 0;
  int64_t element = 0;
};

// Simulates the segments of one chunk as client/torch/stream runs them. Tensors
// in rings, kept rows or states are not allocated from this heap.
class TransientSegments {
 public:
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
  using Tensor = TransientHeap::Tensor;
  using Place = TransientMath::Place;
  struct Output {
    Tensor heads, tokens;
  };

  void Run(Segment which) {
    const int64_t seen = shape_.first_query(m_) + shape_.queries(m_);
    switch (which) {
      case Segment::kEmbedForward:
        return;  // written directly to the staging slot
      case Segment::kQkvForward:
        return QkvForward();
      case Segment::kDiagonalForward:
        return math_.AttendBlock(BlockOf(seen), true);
      case Segment::kOffdiagonalForward:
        if (m_ > 0) math_.AttendBlock(BlockOf(shape_.rows(0)), false);
        return;
      case Segment::kPostForward:
        return PostForward();
      case Segment::kLoss:
        return Loss();
      case Segment::kPostBackward:
        return PostBackward();
      case Segment::kQkvRecompute:
        return QkvRecompute();
      case Segment::kDiagonalBackward:
        return math_.AttendBlockBackward(BlockOf(seen), true);
      case Segment::kOffdiagonalBackward:
        if (m_ > 0) math_.AttendBlockBackward(BlockOf(shape_.rows(0)), false);
        return;
      case Segment::kQkvBackward:
        return QkvBackward();
      case Segment::kEmbedBackward:
        return EmbedBackward();
    }
  }

  // --- shared by several segments

  void Exchange(const Travellers& what, Towards where) {
    Exchange(what, where, [](int64_t) { return 0; });
  }

  void ExchangeDropped(Class which, const Travellers& what) {
    Exchange(what, Towards::kHeads,
             [&](int64_t p) { return shape_.present_of(which, m_, p); });
  }

  // Allocates the messages of a head exchange (client/torch/ranks/ulysses.h) of
  // each rank p's rows from first(p) on.
  void Exchange(const Travellers& what, Towards where, auto first) {
    if (shape_.ranks == 1) return;
    std::vector<int64_t> rows;
    for (int64_t p = 0; p < shape_.ranks; ++p) {
      rows.push_back(shape_.layout.local_rows(m_, p) - first(p));
    }
    const int64_t mine = shape_.rank;
    // The bytes per row that this rank and p exchange for `holder`'s heads.
    // Replicas of a kv head are sent once.
    const auto row_bytes = [&](int64_t p, int64_t holder) {
      const auto& kv = heads_.kv_of(holder);
      const int64_t keys = kv.back() - kv.front() + 1;
      const int64_t queries =
          heads_.part(p) == heads_.part(mine) ? what.queries : 0;
      return (queries * heads_.q_per_rank + what.keys * keys) * shape_.dim *
             what.element;
    };
    // Bytes of this rank's rows and of other ranks' rows.
    int64_t tokens = 0, others = 0;
    for (int64_t p = 0; p < shape_.ranks; ++p) {
      if (p == mine) continue;
      tokens += rows[mine] * row_bytes(p, p);
      others += rows[p] * row_bytes(p, mine);
    }
    const bool away = where == Towards::kHeads;
    const auto received = heap_.Take(away ? others : tokens);
    const auto sent = heap_.Take(away ? tokens : others);
    // The gradients of an expanded kv head are summed one head at a time.
    if (where == Towards::kTokens && what.keys > 0 && !heads_.grouped) {
      heap_.Pass(*std::ranges::max_element(rows) * shape_.dim * what.element);
    }
  }

  Tensor Project(Class which, int64_t rows, Place place) {
    return math_.LinearForward(rows, hidden(),
                               which == Class::kQ ? query() : key(), place);
  }

  // Decides like RowWriter::PlaceOf (client/torch/stream).
  Place PlaceOf(Class which, int64_t first, int64_t count) const {
    const int64_t kept = shape_.kept(which, m_), end = first + count;
    const bool whole =
        end <= kept || (first >= kept && end <= shape_.present(which, m_));
    return whole ? Place::kGiven : Place::kNew;
  }

  // Returns o in the activations' type, in head layout and in token layout.
  Output OutputHome() {
    Output o;
    if (shape_.output_element != shape_.element) {
      o.heads =
          math_.FromFp32(shape_.queries(m_) * shape_.q_heads * shape_.dim);
    }
    if (shape_.ranks > 1) o.tokens = math_.Make(local_ * query());
    Exchange({1, 0, shape_.element}, Towards::kTokens);
    return o;
  }

  // --- forward

  void QkvForward() {
    const Tensor normed =
        math_.NormForward(local_, PlaceOf(Class::kNorm1, 0, local_));
    std::optional tables = math_.MakeRopeTables(local_);
    const Tensor q = Project(Class::kQ, local_, HeadSide()),
                 k = Project(Class::kK, local_, HeadSide()),
                 v = Project(Class::kV, local_, HeadSide());
    tables.reset();
    Exchange({1, 2, shape_.element}, Towards::kHeads);
  }

  void PostForward() {
    const Output o = OutputHome();
    const Tensor x2 = math_.LinearForward(local_, query(), hidden(),
                                          PlaceOf(Class::kX2, 0, local_));
    ForRows([this](int64_t row, int64_t rows) { FeedForward(row, rows); });
  }

  void FeedForward(int64_t row, int64_t rows) {
    const auto wide = [&](Class which) {
      return math_.LinearForward(rows, hidden(), model_.ffn,
                                 PlaceOf(which, row, rows));
    };
    const Tensor normed =
        math_.NormForward(rows, PlaceOf(Class::kNorm2, row, rows));
    const Tensor up = wide(Class::kUp);
    const Tensor gate = model_.gated ? wide(Class::kGate) : Tensor();
    const Tensor act =
        math_.ActivationForward(rows, PlaceOf(Class::kAct, row, rows));
    const Tensor y = math_.LinearForward(rows, model_.ffn, hidden());
  }

  void Loss() {
    // The first group has the most rows.
    const int64_t rows = shape_.loss_rows(
        {0, std::min(shape_.loss.chunks, shape_.chunks()), true});
    if (rows == 0) return;
    const Tensor d_normed = [&] {
      const Tensor normed = math_.NormForward(rows);
      return math_.LossForwardBackward(rows, shape_.loss.rows);
    }();
    math_.NormBackward(rows, 1, /*residual=*/false);
  }

  // --- backward

  void PostBackward() {
    const Output o = OutputHome();
    ForRows([this](int64_t row, int64_t rows) { FeedForwardAgain(row, rows); });
    math_.LinearBackwardWeight(local_, query(), {{hidden(), model_.biases.o}});
    const Tensor d_home =
        math_.LinearBackwardInput(local_, query(), hidden(), HeadSide());
    Exchange({1, 0, shape_.element}, Towards::kHeads);
  }

  // Recomputes the dropped tensors of some rows, and runs their backward.
  void FeedForwardAgain(int64_t row, int64_t rows) {
    const Tensor x2 = Rows(Class::kX2, row, rows, [this](int64_t n) {
      return math_.LinearForward(n, query(), hidden());
    });
    const Tensor norm2 = Rows(Class::kNorm2, row, rows, [this](int64_t n) {
      return math_.NormForward(n);
    });
    const auto wide = [this](int64_t n) {
      return math_.LinearForward(n, hidden(), model_.ffn);
    };
    const Tensor up = Rows(Class::kUp, row, rows, wide);
    const Tensor gate =
        model_.gated ? Rows(Class::kGate, row, rows, wide) : Tensor();
    FeedForwardBackward(rows, Rows(Class::kAct, row, rows, [this](int64_t n) {
                          return math_.ActivationForward(n);
                        }));
  }

  void FeedForwardBackward(int64_t rows, Tensor act) {
    const int64_t ffn = model_.ffn;
    const bool bias = model_.biases.ffn;
    math_.LinearBackwardWeight(rows, ffn, {{hidden(), bias}});
    act.Free();
    Tensor of_output = math_.LinearBackwardInput(rows, ffn, hidden());
    Tensor d = math_.ActivationBackward(rows);
    if (model_.gated) {
      math_.LinearBackwardWeight(rows, hidden(), {{ffn, bias}, {ffn, false}});
    } else {
      of_output.Free();
      math_.LinearBackwardWeight(rows, hidden(), {{ffn, bias}});
    }
    const Tensor of_up = NormGradient(rows, ffn);
    const Tensor of_gate = model_.gated ? NormGradient(rows, ffn) : Tensor();
    of_output.Free();
    d.Free();
    math_.NormBackward(rows, model_.gated ? 2 : 1, /*residual=*/true);
  }

  // Classes that are cut at the same rows are exchanged together.
  void QkvRecompute() {
    std::vector<Class> again;
    int64_t first = local_;
    for (const Class which : kHeadClasses) {
      if (!shape_.any_dropped(which, m_)) continue;
      again.push_back(which);
      first = std::min(first, shape_.present(which, m_));
    }
    if (again.empty()) return;
    const Tensor normed = math_.NormForward(local_ - first);
    const auto tables = math_.MakeRopeTables(local_ - first);
    std::vector<Tensor> parts;
    Travellers what = {0, 0, shape_.element};
    for (size_t i = 0; i < again.size(); ++i) {
      const Class which = again[i];
      parts.push_back(
          Project(which, local_ - shape_.present(which, m_), HeadSide()));
      ++(which == Class::kQ ? what.queries : what.keys);
      if (i + 1 < again.size() &&
          shape_.fractions(again[i + 1]) == shape_.fractions(which)) {
        continue;
      }
      ExchangeDropped(which, what);
      parts.clear();
      what = {0, 0, shape_.element};
    }
  }

  void QkvBackward() {
    Tensor dq, dk, dv;  // on one rank, sums stay in rings and are rotated there
    if (shape_.ranks > 1) {
      dq = math_.MakeFp32(local_ * query());
      dk = math_.MakeFp32(local_ * key());
      dv = math_.MakeFp32(local_ * key());
      Exchange({1, 2, 4}, Towards::kTokens);
    }
    const auto round = [this](Tensor& d, int64_t width) {
      if (shape_.element < 4) d = math_.Make(local_ * width);
    };
    {
      const auto tables = math_.MakeRopeTables(local_);
      round(dq, query());
      round(dk, key());
    }
    round(dv, key());
    if (local_ == 0) return;
    {
      const Tensor normed = Rows(Class::kNorm1, 0, local_, [this](int64_t n) {
        return math_.NormForward(n);
      });
      const Biases& bias = model_.biases;
      math_.LinearBackwardWeight(
          local_, hidden(),
          {{query(), bias.q}, {key(), bias.k}, {key(), bias.v}});
    }
    const Tensor of_q = NormGradient(local_, query()),
                 of_k = NormGradient(local_, key()),
                 of_v = NormGradient(local_, key());
    math_.NormBackward(local_, 3, /*residual=*/true);
  }

  void EmbedBackward() { const Tensor dx = math_.ToFp32(local_ * hidden()); }

  // Decides like RowReader: a view if all rows are kept or all are stored; else
  // a new tensor with all the rows.
  Tensor Rows(Class which, int64_t first, int64_t count, auto again) {
    const int64_t end = first + count;
    const int64_t kept = std::clamp(shape_.kept(which, m_), first, end);
    const int64_t present = std::clamp(shape_.present(which, m_), kept, end);
    if (kept == end || (kept == first && present == end)) return {};
    if (present == first) return again(count);
    Tensor rows = heap_.Take(count * shape_.row_bytes(which));
    if (end > present) const Tensor dropped = again(end - present);
    return rows;
  }

  void ForRows(auto body) const {
    for (int64_t row = 0; row < local_; row += shape_.ffn_rows) {
      body(row, std::min(shape_.ffn_rows, local_ - row));
    }
  }

  // One rank exchanges nothing: it makes tensors in head layout in place.
  Place HeadSide() const {
    return shape_.ranks == 1 ? Place::kGiven : Place::kNew;
  }
  Tensor NormGradient(int64_t rows, int64_t width) {
    return math_.LinearBackwardInput(rows, hidden(), width);
  }

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

// Simulates the tail and one full chunk: the first, or for blocks off the
// diagonal the second, because the first has no earlier keys.
Bytes PeakOf(std::span<const SegmentTraits> segments,
             const StreamOptions& options, const Kernels& kernels) {
  const StreamShape shape(options);
  const ModelShape& model = options.model;
  const HeadLayout heads(model.heads, model.kv_heads, shape.ranks);
  const int64_t end = shape.chunks() - 1;
  TransientSegments first(shape, model, heads, kernels, 0),
      second(shape, model, heads, kernels, std::min<int64_t>(1, end)),
      last(shape, model, heads, kernels, end);
  int64_t most = 0;
  for (const auto& [which, name, part] : segments) {
    const bool offdiagonal = which == Segment::kOffdiagonalForward ||
                             which == Segment::kOffdiagonalBackward;
    most = std::max(most, (offdiagonal ? second : first).Peak(which));
    if (shape.has_tail()) most = std::max(most, last.Peak(which));
  }
  return Bytes(most);
}

}  // namespace

Bytes TransientBytes(const StreamOptions& options, Segment which,
                     const Kernels& kernels) {
  return PeakOf({&Traits(which), 1}, options, kernels);
}

Bytes TransientBytes(const StreamOptions& options, const Kernels& kernels) {
  return PeakOf(kSegments, options, kernels);
}

}  // namespace sluice::stream
