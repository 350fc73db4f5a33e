// How each class of a layer's activations is divided between forward and
// backward: kept in HBM, swapped to host memory, or recomputed. No torch.
//
// Thread safety: pure functions.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "planner/stream/classes.h"

namespace sluice::stream {

// Token fractions of a class. The first `keep` of a rank's rows of a chunk stay
// in HBM, the next `swap` in host memory; the rest is recomputed. A class that
// is used in place stays by chunks, the last ones (Keep::kChunks), or whole or
// not at all (Keep::kWhole).
struct ClassFractions {
  double keep = 0;
  double swap = 0;
  bool operator==(const ClassFractions&) const = default;
};
using FractionMap = std::map<std::string, ClassFractions>;  // by class

// Keeps all of every class, scratch included. Such a step copies nothing.
FractionMap KeepEverything(const ModelShape& model);

// Returns `given`, with `keep` in HBM (the last chunks) for every other class
// that is used in place by chunks.
FractionMap KeepLastChunks(FractionMap given, double keep);

// Returns `given`, with every other free class dropped after forward. A step
// with rerun chunks requires that of all its chunks.
FractionMap DropFree(const ModelShape& model, FractionMap given);

// Returns every class of the model: as given, or else swapped. A free class
// swaps the fraction `alpha`.
FractionMap FillFractions(const ModelShape& model, const FractionMap& given,
                          double alpha);

// Returns `fractions` with `keep` 0 except where `given`. Rows that cannot be
// recomputed are swapped instead.
FractionMap WithoutKept(FractionMap fractions, const FractionMap& given);

// InvalidArgument, one line: a class that the model does not have; a fraction
// or sum outside [0, 1]; a part of a class that is kept whole or not at all; a
// dropped part of a class that cannot be recomputed.
absl::Status CheckFractions(const FractionMap& fractions,
                            const ModelShape& model);

}  // namespace sluice::stream
