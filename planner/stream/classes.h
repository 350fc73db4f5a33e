// The classes of activations that a streamed step stores between two chunks or
// two passes. Fractions, sizes, the host arena and the profile follow from this
// one table.
//
// Thread safety: values and pure functions.
#pragma once

#include <array>
#include <string_view>

#include "planner/stream/model_shape.h"
#include "planner/stream/segments.h"

namespace sluice::stream {

// MEMO's skeletal tensors (section 3.1), and the tensors that FPDT keeps
// between blocks.
enum class Class {
  kNorm1,
  kQ,
  kK,
  kV,
  kO,    // attention's output, merged over blocks
  kLse,  // its log-sum-exp
  kX2,   // the residual after attention
  kNorm2,
  kUp,
  kGate,
  kAct,
  kInput,           // hidden states: a layer's input, later its gradient
  kOutputGradient,  // dO
  // Gradients of the inner side (BackwardOrder), summed block by block: dq with
  // keys outer, dk and dv with queries outer.
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
};
inline constexpr int kClassCount = 16;

// Which rows of a chunk a rank holds. kTokens: its own rows. In head layout
// (HeadLayout) kQueries: its part of the chunk's queries; kKeys: all keys of
// the chunk.
enum class Rows { kTokens, kQueries, kKeys };
// The elements of a row: the hidden state, this rank's q heads, its k (or v)
// heads, the FFN's width, or one element per q head.
enum class Width { kHidden, kQuery, kKey, kFfn, kPerHead };
// kActivation: the dtype. kOutput: fp32 or the dtype
// (StreamOptions::round_output).
enum class Precision { kActivation, kFp32, kOutput };
// How long rows live. kLayer: from a layer's forward to its backward, with
// memory for every layer. kStep: the whole step, in one set per layer and one
// more. kScratch: during one layer's backward; the next layer overwrites them.
enum class Life { kLayer, kStep, kScratch };

// How part of a class can stay in HBM until its next use. kRows: the first of a
// rank's rows of every chunk stay. kChunks and kWhole are used in place, a
// whole chunk at a time. kChunks: the last chunks stay, which backward needs
// first. kWhole: all chunks stay or none.
enum class Keep { kRows, kChunks, kWhole };

struct ClassTraits {
  Class which;
  const char* name;  // in profiles and plans
  Rows rows;
  Width width;
  Precision precision;
  Life life;
  // Where rows can be until their next use. Every class can also be swapped.
  Keep keep;           // how they can be kept in HBM
  bool can_recompute;  // from the layer's input, after rows were dropped
  // All ranks must have the same fractions, because rows in head layout come
  // from all of them.
  bool shared;
  bool gated_only;  // for SwiGLU only
  Segment made_by;  // the forward segment that makes it, if free

  // Returns whether the planner chooses the class's fractions.
  constexpr bool free() const { return can_recompute; }
  bool of(const ModelShape& model) const { return !gated_only || model.gated; }
};

// k and v that are not kept are always copied, because later chunks read them.
// To drop their rows means only that they lie in scratch and not in the layer's
// own memory.
// clang-format off
inline constexpr std::array<ClassTraits, kClassCount> kClasses = {{
    // class, name,
    //   rows, width, precision, life,
    //   keep, recompute, shared, gated only, made by
    {Class::kNorm1, "norm1",
     Rows::kTokens, Width::kHidden, Precision::kActivation, Life::kLayer,
     Keep::kRows, true, false, false, Segment::kQkvForward},
    {Class::kQ, "q",
     Rows::kQueries, Width::kQuery, Precision::kActivation, Life::kLayer,
     Keep::kWhole, true, true, false, Segment::kQkvForward},
    {Class::kK, "k",
     Rows::kKeys, Width::kKey, Precision::kActivation, Life::kLayer,
     Keep::kWhole, true, true, false, Segment::kQkvForward},
    {Class::kV, "v",
     Rows::kKeys, Width::kKey, Precision::kActivation, Life::kLayer,
     Keep::kWhole, true, true, false, Segment::kQkvForward},
    {Class::kO, "attention_output",
     Rows::kQueries, Width::kQuery, Precision::kOutput, Life::kLayer,
     Keep::kChunks, false, false, false, {}},
    {Class::kLse, "lse",
     Rows::kQueries, Width::kPerHead, Precision::kFp32, Life::kLayer,
     Keep::kChunks, false, false, false, {}},
    {Class::kX2, "attention_residual",
     Rows::kTokens, Width::kHidden, Precision::kActivation, Life::kLayer,
     Keep::kRows, true, false, false, Segment::kPostForward},
    {Class::kNorm2, "norm2",
     Rows::kTokens, Width::kHidden, Precision::kActivation, Life::kLayer,
     Keep::kRows, true, false, false, Segment::kPostForward},
    {Class::kUp, "ffn_up",
     Rows::kTokens, Width::kFfn, Precision::kActivation, Life::kLayer,
     Keep::kRows, true, false, false, Segment::kPostForward},
    {Class::kGate, "ffn_gate",
     Rows::kTokens, Width::kFfn, Precision::kActivation, Life::kLayer,
     Keep::kRows, true, false, true, Segment::kPostForward},
    {Class::kAct, "ffn_activation",
     Rows::kTokens, Width::kFfn, Precision::kActivation, Life::kLayer,
     Keep::kRows, true, false, false, Segment::kPostForward},
    {Class::kInput, "layer_input",
     Rows::kTokens, Width::kHidden, Precision::kActivation, Life::kStep,
     Keep::kChunks, false, false, false, {}},
    {Class::kOutputGradient, "output_gradient",
     Rows::kQueries, Width::kQuery, Precision::kActivation, Life::kScratch,
     Keep::kWhole, false, false, false, {}},
    {Class::kQueryGradient, "query_gradient",
     Rows::kQueries, Width::kQuery, Precision::kFp32, Life::kScratch,
     Keep::kWhole, false, false, false, {}},
    {Class::kKeyGradient, "key_gradient",
     Rows::kKeys, Width::kKey, Precision::kFp32, Life::kScratch,
     Keep::kWhole, false, false, false, {}},
    {Class::kValueGradient, "value_gradient",
     Rows::kKeys, Width::kKey, Precision::kFp32, Life::kScratch,
     Keep::kWhole, false, false, false, {}},
}};
// clang-format on

constexpr const ClassTraits& Traits(Class which) {
  return kClasses[static_cast<size_t>(which)];
}

// The classes that a layer's forward stores for its backward, in arena order.
inline constexpr Class kLayerClasses[] = {
    Class::kNorm1, Class::kQ,    Class::kK,  Class::kV,
    Class::kO,     Class::kLse,  Class::kX2, Class::kNorm2,
    Class::kUp,    Class::kGate, Class::kAct};
// Subsets of the free classes: those in head layout; those of a layer's second
// half, each made from the ones before; and all.
inline constexpr Class kHeadClasses[] = {Class::kQ, Class::kK, Class::kV};
inline constexpr Class kPostClasses[] = {Class::kX2, Class::kNorm2, Class::kUp,
                                         Class::kGate, Class::kAct};
inline constexpr Class kFreeClasses[] = {
    Class::kNorm1, Class::kQ,  Class::kK,    Class::kV,  Class::kX2,
    Class::kNorm2, Class::kUp, Class::kGate, Class::kAct};

// Returns the class of that name, or null.
const ClassTraits* FindClass(std::string_view name);

}  // namespace sluice::stream
