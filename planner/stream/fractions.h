// What becomes of each class of a layer's activations between forward and
// backward: kept in HBM, swapped to host memory, or computed again. No torch.
//
// Thread safety: pure functions.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "planner/stream/classes.h"

namespace sluice::stream {

// Token fractions of a class: of a rank's rows of a chunk the first `keep`
// stay in HBM, the next `swap` in host memory; the rest is computed again. A
// class that is used in place stays by chunks, the last ones (Keep::kChunks),
// or whole or not at all (Keep::kWhole).
struct ClassFractions {
  double keep = 0;
  double swap = 0;
  bool operator==(const ClassFractions&) const = default;
};
using FractionMap = std::map<std::string, ClassFractions>;  // by class

// All of every class, scratch too: a step of these moves nothing.
FractionMap KeepEverything(const ModelShape& model);

// `given`; other classes that are used in place by chunks keep their last part,
// `keep`, in HBM.
FractionMap KeepLastChunks(FractionMap given, double keep);

// `given`; other free classes are dropped after forward, as chunks that run
// again require of all chunks.
FractionMap DropFree(const ModelShape& model, FractionMap given);

// Every class of the model: as given, else swapped; a free class swaps the
// share `alpha`.
FractionMap FillFractions(const ModelShape& model, const FractionMap& given,
                          double alpha);

// Nothing kept but what is given. What cannot be recomputed is swapped instead.
FractionMap WithoutKept(FractionMap fractions, const FractionMap& given);

// InvalidArgument, one line: a class that the model has not, a fraction or sum
// outside [0, 1], a part kept of what is whole, a part lost of what cannot be
// computed again.
absl::Status CheckFractions(const FractionMap& fractions,
                            const ModelShape& model);

}  // namespace sluice::stream
