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
    kMixed,    // weights for good, activations as a stack, scratch, odd sizes
    kRandom,   // lifetimes and sizes uniform
    kAllLive,  // every buffer alive at the middle, each born and freed alone
    kChurn,    // a pool of live buffers, one at random replaced at a time
    // Like a compiler's program: parameters live from the start to their last
    // use; results live for 2 steps to half of the program, rarely long; sizes
    // are m 2^k + 1 over eight decades.
    kCompiler,
    // Jittered copies of IOPDDL G_1, or of ResNet-50 from SOMAS; each begins
    // before the last one ends.
    kChain,
    kSomasChain,
  } shape = Shape::kMixed;
};

plan::Trace GenerateLarge(const LargeSpec& spec, uint32_t seed);

std::vector<LargeSpec> StandardLarge();

}  // namespace sluice::planner
