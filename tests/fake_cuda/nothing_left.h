// What tests of the product on the fake driver expect after they have destroyed
// the product's driver object.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"

namespace sluice::fake_cuda {

// Expects no findings and no live objects. Revives lost contexts.
inline void ExpectNothingLeft() {
  fake_cuda_recover();
  std::string findings, alive;
  fake_cuda_take_findings(findings);
  EXPECT_EQ(findings, "");
  fake_cuda_alive(alive);
  EXPECT_EQ(alive, "");
}

}  // namespace sluice::fake_cuda
