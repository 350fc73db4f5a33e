// How each class of a layer's activations is divided between forward and
// backward: kept in HBM, swapped to host memory, or recomputed.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "planner/stream/classes.h"

namespace sluice::stream {

// Token fractions of a class. The first `keep` of a rank's rows of a chunk stay
// in HBM, the next `swap` go to host memory, and the other rows are recomputed.
// If the class is used in place, `keep` is the fraction of last chunks that
// stay (Keep::kChunks), or 0 or 1 (Keep::kWhole).
struct ClassFractions {
  double keep = 0;
  double swap = 0;
  bool operator==(const ClassFractions&) const = default;
};
using FractionMap = std::map<std::string, ClassFractions>;  // by class

// Returns the class's entry in `given`. Without one, keeps nothing, and swaps
// the fraction `alpha` of a free class, or all of another class.
ClassFractions FractionsOf(const FractionMap& given, const ClassTraits& of,
                           double alpha);
// Returns FractionsOf for every class of the model.
FractionMap FillFractions(const ModelShape& model, const FractionMap& given,
                          double alpha);

// Returns fractions with which a step keeps every class, scratch included.
FractionMap KeepEverything(const ModelShape& model);

// Adds an entry for every class of Keep::kChunks that `given` lacks. The entry
// keeps the fraction `keep` of the chunks, the last ones, in HBM.
FractionMap KeepLastChunks(FractionMap given, double keep);

// Adds an entry for every free class that `given` lacks, which drops the class
// after forward, as a step that reruns chunks requires.
FractionMap DropFree(const ModelShape& model, FractionMap given);

// Returns `fractions` with `keep` set to 0 for all classes not in `given`. Rows
// that cannot be recomputed are swapped instead.
FractionMap WithoutKept(FractionMap fractions, const FractionMap& given);

// InvalidArgument, one line: the model does not have a class; a fraction or sum
// is outside [0, 1]; a class of Keep::kWhole has a `keep` between 0 and 1; or
// rows that cannot be recomputed are dropped.
absl::Status CheckFractions(const FractionMap& fractions,
                            const ModelShape& model);

}  // namespace sluice::stream
