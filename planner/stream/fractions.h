// What becomes of each class of a layer's activations between forward and
// backward: kept in HBM, swapped to host memory, or computed again. No torch.
//
// Thread safety: pure functions.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "planner/stream/model_shape.h"

namespace sluice::stream {

// Token fractions of a class: of a rank's rows of a chunk the first `keep`
// stay in HBM, the next `swap` in host memory; the rest is computed again.
struct ClassFractions {
  double keep = 0;
  double swap = 0;
  bool operator==(const ClassFractions&) const = default;
};
using FractionMap = std::map<std::string, ClassFractions>;  // by class

// A class that need not be swapped whole.
struct FreeClass {
  const char* name;  // as in profile and plan
  bool can_keep;
  // All ranks must have the same fractions: its rows lie in head layout, and
  // come from all of them.
  bool shared;
  bool gated_only;  // SwiGLU's
  bool of(const ModelShape& model) const { return !gated_only || model.gated; }
};
inline constexpr FreeClass kFreeClasses[] = {
    {"norm1", true, false, false},
    {"q", false, true, false},
    {"k", false, true, false},
    {"v", false, true, false},
    {"attention_residual", true, false, false},
    {"norm2", true, false, false},
    {"ffn_up", true, false, false},
    {"ffn_gate", true, false, true},
    {"ffn_activation", true, false, false}};

// Null: no free class of that name.
const FreeClass* FindFreeClass(const std::string& name);

// InvalidArgument, one line: a class that the model has not, a fraction or sum
// outside [0, 1], rows kept that cannot be.
absl::Status CheckFractions(const FractionMap& fractions,
                            const ModelShape& model);

}  // namespace sluice::stream
