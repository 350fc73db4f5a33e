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
  } shape = Shape::kMixed;
};

plan::Trace GenerateLarge(const LargeSpec& spec, uint32_t seed);

std::vector<LargeSpec> StandardLarge();

}  // namespace sluice::planner
