// The classes of activations that a streamed step has between two chunks or
// two passes: one table, from which fractions, sizes, the host arena and the
// profile follow.
//
// Thread safety: values and pure functions.
#pragma once

#include <array>
#include <string_view>

#include "planner/stream/model_shape.h"
#include "planner/stream/segments.h"

namespace sluice::stream {

// MEMO's skeletal tensors (section 3.1) and what FPDT keeps between blocks.
enum class Class {
  kNorm1,
  kQ,
  kK,
  kV,
  kO,    // attention's output, merged
  kLse,  // its log-sum-exp
  kX2,   // the residual after attention
  kNorm2,
  kUp,
  kGate,
  kAct,
  kInput,           // hidden states: a layer's input, later its gradient
  kOutputGradient,  // dO
  // The inner side's gradients, summed block by block: dq with keys outer, dk
  // and dv with queries outer.
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
};
inline constexpr int kClassCount = 16;

// Which rows a rank has: its own of each chunk; or, of its heads (Ulysses), its
// part of the chunk's queries, or all of the chunk's keys (HeadLayout).
enum class Rows { kTokens, kQueries, kKeys };
// Elements of a row: of the hidden state, of this rank's q heads, of its k (or
// v) heads, of the FFN; or one for each q head.
enum class Width { kHidden, kQuery, kKey, kFfn, kPerHead };
// The dtype's; fp32 whatever the dtype; or as StreamOptions::round_output says.
enum class Precision { kActivation, kFp32, kOutput };
// How long rows live: from a layer's forward to its backward, of every layer
// at once; over the whole step, one set per layer and one more; or within one
// layer's backward, in scratch that the next layer overwrites.
enum class Life { kLayer, kStep, kScratch };

// What of a class can stay in HBM until it is needed again: the first of a
// rank's rows of every chunk; or, used in place a whole chunk at a time, the
// last chunks, which backward needs first, or all of them or none.
enum class Keep { kRows, kChunks, kWhole };

struct ClassTraits {
  Class which;
  const char* name;  // as in profile and plan
  Rows rows;
  Width width;
  Precision precision;
  Life life;
  // What may become of rows until they are needed again: all may be swapped.
  Keep keep;           // in HBM
  bool can_recompute;  // dropped, and made again from the layer's input
  // All ranks must have the same fractions: rows lie in head layout, and come
  // from all of them.
  bool shared;
  bool gated_only;  // SwiGLU's
  Segment made_by;  // of a free class: the segment of forward that makes it

  // With fractions to choose, class by class.
  constexpr bool free() const { return can_recompute; }
  bool of(const ModelShape& model) const { return !gated_only || model.gated; }
};

// k and v that are not kept travel in any case, because later chunks read them:
// their rows can be dropped, which only says that scratch holds them instead of
// memory of the layer's own.
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

// What a layer's forward leaves for its backward, in the order of the arena.
inline constexpr Class kLayerClasses[] = {
    Class::kNorm1, Class::kQ,    Class::kK,  Class::kV,
    Class::kO,     Class::kLse,  Class::kX2, Class::kNorm2,
    Class::kUp,    Class::kGate, Class::kAct};
// The free ones in head layout; and those of a layer's second half, each made
// from the ones before.
inline constexpr Class kHeadClasses[] = {Class::kQ, Class::kK, Class::kV};
inline constexpr Class kPostClasses[] = {Class::kX2, Class::kNorm2, Class::kUp,
                                         Class::kGate, Class::kAct};
inline constexpr Class kFreeClasses[] = {
    Class::kNorm1, Class::kQ,  Class::kK,    Class::kV,  Class::kX2,
    Class::kNorm2, Class::kUp, Class::kGate, Class::kAct};

// The class of that name; null: there is none.
const ClassTraits* FindClass(std::string_view name);

}  // namespace sluice::stream
