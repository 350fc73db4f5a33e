// Large synthetic traces of shapes that are hard for a placer. The public
// traces of this size (an LLM's, two compilers') may not be shipped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/plan/profile.h"

namespace sluice::planner {

struct LargeSpec {
  std::string name;
  int buffers = 60000;
  enum class Shape {
    kMixed,    // weights that stay, a stack of activations, scratch buffers
    kRandom,   // uniformly random lifetimes
    kAllLive,  // nearly all buffers alive at once, freed in random order
    kChurn,    // a pool of live buffers, of which random ones are replaced
    // Like a compiler's program. Parameters live from the start to their last
    // use. Results live for 2 to 2^18 steps, mostly for few. Sizes are m 2^k +
    // 1 over eight decades.
    kCompiler,
    // Jittered copies of IOPDDL G_1, or of ResNet-50 from SOMAS. Each copy
    // begins before the previous copy ends.
    kChain,
    kSomasChain,
  } shape = Shape::kMixed;
};

plan::Trace GenerateLarge(const LargeSpec& spec, uint32_t seed);

std::vector<LargeSpec> StandardLarge();

}  // namespace sluice::planner
