// A layer's backward (client/torch/stream/streamed_backward.cc).
#include <vector>

#include "planner/stream/transient_segments.h"

namespace sluice::stream {

using Tensor = TransientHeap::Tensor;

// --- backward

void TransientSegments::PostBackward() {
  const Output o = OutputHome();
  ForRows([this](int64_t row, int64_t rows) { FeedForwardAgain(row, rows); });
  math_.LinearBackwardWeight(local_, query(), {{hidden(), model_.biases.o}});
  const Tensor d_home =
      math_.LinearBackwardInput(local_, query(), hidden(), HeadSide());
  Exchange(Carry(1, 0, shape_.element), Towards::kHeads);
}

// What backward needs of some rows, made again where it is dropped, and their
// backward.
void TransientSegments::FeedForwardAgain(int64_t row, int64_t rows) {
  const Tensor x2 = Rows(Class::kX2, row, rows, [this](int64_t n) {
    return math_.LinearForward(n, query(), hidden());
  });
  const Tensor norm2 = Rows(Class::kNorm2, row, rows,
                            [this](int64_t n) { return math_.NormForward(n); });
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

void TransientSegments::FeedForwardBackward(int64_t rows, Tensor act) {
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

// Classes that are cut at the same rows travel together.
void TransientSegments::QkvRecompute() {
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
  Travellers what = Carry(0, 0, shape_.element);
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
    what = Carry(0, 0, shape_.element);
  }
}

void TransientSegments::QkvBackward() {
  Tensor dq, dk, dv;  // sums lie in rings, and are turned there on one rank
  if (shape_.ranks > 1) {
    dq = math_.MakeFp32(local_ * query());
    dk = math_.MakeFp32(local_ * key());
    dv = math_.MakeFp32(local_ * key());
    Exchange(Carry(1, 2, 4), Towards::kTokens);
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

void TransientSegments::EmbedBackward() {
  const Tensor dx = math_.ToFp32(local_ * hidden());
}

}  // namespace sluice::stream
