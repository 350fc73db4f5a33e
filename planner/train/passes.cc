#include "planner/train/passes.h"

namespace sluice::planner::train {
namespace {

using stream::ModelShape;

bool LayerNorms(const ModelShape& model) {
  return model.norm == stream::NormKind::kLayerNorm;
}

// Tables of cos and sin: 16 for ATen's computation in fp64, 2 each for q's and
// k's reads.
const Passes kTables = {.head = 16 + 2 + 2};
const Passes kResidual = {.hidden = 3};

Passes Turned(const ModelShape& model) {
  if (!model.rope) return {};
  return kTables + Passes{.query = 2, .key = 2};
}
Passes Activation(const ModelShape& model) {
  return {.wide = model.gated ? 3.0 : 2.0};
}

// RMSNorm's backward reads x, each part of dY and the residual, and writes dX.
// LayerNorm's uses ATen's operators in fp32.
Passes NormBackward(const ModelShape& model, double gradients) {
  if (LayerNorms(model)) return {.hidden = 24 + 5 * (gradients - 1)};
  return {.hidden = 3 + gradients};
}

// Counts the reads of whole output gradients for the gradients of biases.
Passes BiasSums(const stream::Biases& biases) {
  return {.hidden = double(biases.o) + double(biases.ffn),
          .query = double(biases.q),
          .key = double(biases.k) + double(biases.v),
          .wide = double(biases.ffn)};
}

}  // namespace

Passes Passes::operator+(const Passes& other) const {
  return {hidden + other.hidden, query + other.query, key + other.key,
          wide + other.wide, head + other.head};
}

double Passes::Elements(const ModelShape& model) const {
  return hidden * double(model.hidden) + query * double(model.query_width()) +
         key * double(model.key_width()) + wide * double(model.ffn) +
         head * double(model.head_dim());
}

Passes ForwardPasses(const ModelShape& model, bool stored) {
  // ATen's LayerNorm returns a new tensor, which is copied.
  const Passes norms = {.hidden = stored && LayerNorms(model) ? 8.0 : 4.0};
  const Passes rounded_output = {.query = 3};  // from a sum in fp32
  return norms + Turned(model) + rounded_output + kResidual +
         Activation(model) + kResidual;
}

Passes RecomputedPasses(const ModelShape& model) {
  // norm1 is recomputed for q, k and v and again for the gradients of their
  // weights, norm2 once.
  return Passes{.hidden = 6} + Turned(model) + kResidual + Activation(model);
}

Passes BackwardPasses(const ModelShape& model, stream::BackwardOrder order) {
  // Gradients of the inner loop's tensors (q, or k and v) are summed in fp32,
  // and copied when complete.
  const Passes moved = order == stream::BackwardOrder::kKeysOuter
                           ? Passes{.query = 4}
                           : Passes{.key = 8};
  const Passes activation = {.wide = model.gated ? 5.0 : 3.0};
  const Passes rounded = {.query = 3, .key = 6};  // dq, dk, dv, rotated back
  return moved + activation + NormBackward(model, model.gated ? 2 : 1) +
         rounded + (model.rope ? kTables : Passes()) + NormBackward(model, 3) +
         BiasSums(model.biases);
}

}  // namespace sluice::planner::train
