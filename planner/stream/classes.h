// The classes of activations that a streamed step stores between two chunks or
// two passes. Fractions, sizes, the host arena and the profile follow from this
// one table.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
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
  kOutputGradient,  // dO, the gradient of kO
  // Gradients of the inner side (BackwardOrder), summed block by block: dq with
  // keys outer, dk and dv with queries outer.
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
};
inline constexpr int kClassCount = 16;

// Which rows of a chunk a rank holds.
enum class Rows {
  kTokens,   // its own rows
  kQueries,  // in head layout (HeadLayout): its part of the chunk's queries
  kKeys      // in head layout: all keys of the chunk
};
// The elements of a row: the hidden state, this rank's q heads, its k (or v)
// heads, the FFN's width, or one element per q head.
enum class Width { kHidden, kQuery, kKey, kFfn, kPerHead };
enum class Precision {
  kActivation,  // StreamOptions::dtype
  kFp32,
  kOutput  // fp32 or the dtype, by StreamOptions::round_output
};
// How long rows live.
enum class Life {
  kLayer,   // from a layer's forward to its backward; memory for every layer
  kStep,    // the whole step; one set per layer and one for the last output
  kScratch  // during one layer's backward; the next layer overwrites them
};

// How part of a class can stay in HBM until its next use. Classes of kChunks
// and kWhole are used in place, a whole chunk at a time.
enum class Keep {
  kRows,    // the first of a rank's rows of every chunk stay
  kChunks,  // the last chunks stay, which backward needs first
  kWhole    // all chunks stay or none
};

struct ClassTraits {
  Class which;
  const char* name;  // in profiles and plans
  Rows rows;
  Width width;
  Precision precision;
  Life life;
  Keep keep;
  // The forward segment that makes the class from the layer's input, if rows
  // can be dropped and recomputed.
  std::optional<Segment> made_by = {};
  bool gated_only = false;  // for SwiGLU only

  // Returns whether the planner chooses the class's fractions. The other
  // classes cannot be recomputed: what is not kept in HBM is swapped.
  constexpr bool free() const { return made_by.has_value(); }
  // Returns whether all ranks must have the same fractions, because rows in
  // head layout come from all of them.
  constexpr bool shared() const { return free() && rows != Rows::kTokens; }
  bool of(const ModelShape& model) const { return !gated_only || model.gated; }
};

// k and v that are not kept are always copied, because later chunks read them.
// If their rows are dropped, the copies lie in scratch and not in the layer's
// own memory.
inline constexpr std::array<ClassTraits, kClassCount> kClasses = [] {
  using enum Class;
  using enum Rows;
  using enum Width;
  using enum Precision;
  using enum Life;
  using enum Keep;
  constexpr Segment kQkv = Segment::kQkvForward, kPost = Segment::kPostForward;
  // clang-format off
  return std::array<ClassTraits, kClassCount>{{
      {kNorm1, "norm1", kTokens, kHidden, kActivation, kLayer, kRows, kQkv},
      {kQ, "q", kQueries, kQuery, kActivation, kLayer, kWhole, kQkv},
      {kK, "k", kKeys, kKey, kActivation, kLayer, kWhole, kQkv},
      {kV, "v", kKeys, kKey, kActivation, kLayer, kWhole, kQkv},
      {kO, "attention_output", kQueries, kQuery, kOutput, kLayer, kChunks},
      {kLse, "lse", kQueries, kPerHead, kFp32, kLayer, kChunks},
      {kX2, "attention_residual",
       kTokens, kHidden, kActivation, kLayer, kRows, kPost},
      {kNorm2, "norm2", kTokens, kHidden, kActivation, kLayer, kRows, kPost},
      {kUp, "ffn_up", kTokens, kFfn, kActivation, kLayer, kRows, kPost},
      {kGate, "ffn_gate",
       kTokens, kFfn, kActivation, kLayer, kRows, kPost, /*gated_only=*/true},
      {kAct, "ffn_activation",
       kTokens, kFfn, kActivation, kLayer, kRows, kPost},
      {kInput, "layer_input", kTokens, kHidden, kActivation, kStep, kChunks},
      {kOutputGradient, "output_gradient",
       kQueries, kQuery, kActivation, kScratch, kWhole},
      {kQueryGradient, "query_gradient",
       kQueries, kQuery, kFp32, kScratch, kWhole},
      {kKeyGradient, "key_gradient", kKeys, kKey, kFp32, kScratch, kWhole},
      {kValueGradient, "value_gradient", kKeys, kKey, kFp32, kScratch, kWhole},
  }};
  // clang-format on
}();
static_assert(InEnumOrder(kClasses));

constexpr const ClassTraits& Traits(Class which) {
  return kClasses[static_cast<size_t>(which)];
}

// The classes that a layer's forward stores for its backward, in arena order.
inline constexpr Class kLayerClasses[] = {
    Class::kNorm1, Class::kQ,    Class::kK,  Class::kV,
    Class::kO,     Class::kLse,  Class::kX2, Class::kNorm2,
    Class::kUp,    Class::kGate, Class::kAct};
// The free classes in head layout.
inline constexpr Class kHeadClasses[] = {Class::kQ, Class::kK, Class::kV};
// The free classes of a layer's second half. Each is made from those before it.
inline constexpr Class kPostClasses[] = {Class::kX2, Class::kNorm2, Class::kUp,
                                         Class::kGate, Class::kAct};
inline constexpr Class kFreeClasses[] = {
    Class::kNorm1, Class::kQ,  Class::kK,    Class::kV,  Class::kX2,
    Class::kNorm2, Class::kUp, Class::kGate, Class::kAct};
static_assert(std::ranges::count_if(kClasses, &ClassTraits::free) ==
              std::ranges::count_if(kFreeClasses, [](Class which) {
                return Traits(which).free();
              }));

int64_t Sum(std::span<const Class> classes, auto of) {
  int64_t sum = 0;
  for (const Class which : classes) sum += of(which);
  return sum;
}

// Classes that attention's blocks copy: the two sides of backward (forward
// fetches only keys), and the inner side's sums.
inline constexpr Class kKeyPair[] = {Class::kK, Class::kV};
inline constexpr Class kQuerySide[] = {Class::kQ, Class::kOutputGradient,
                                       Class::kO, Class::kLse};
inline constexpr Class kSums[] = {Class::kQueryGradient, Class::kKeyGradient,
                                  Class::kValueGradient};

constexpr const ClassTraits* FindClass(std::string_view name) {
  const auto* found = std::ranges::find(kClasses, name, &ClassTraits::name);
  return found == kClasses.end() ? nullptr : found;
}

}  // namespace sluice::stream
