// Large traces of shapes that strain a placer; synthetic. The public traces
// of this size (an LLM's, two compilers') are not ours to ship.
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
    // As a compiler's program: parameters from the start, each until its last
    // use; results that live for 2 steps to half of the program, long ones
    // seldom; sizes m 2^k + 1 over eight decades.
    kCompiler,
    // Jittered copies of IOPDDL G_1, or of ResNet-50 from SOMAS, the next
    // before the last is over.
    kChain,
    kSomasChain,
  } shape = Shape::kMixed;
};

plan::Trace GenerateLarge(const LargeSpec& spec, uint32_t seed);

std::vector<LargeSpec> StandardLarge();

}  // namespace sluice::planner
