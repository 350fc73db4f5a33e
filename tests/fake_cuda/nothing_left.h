// What a test of the product on the fake driver expects when its driver is
// gone.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"

namespace sluice::fake_cuda {

// Nothing was found, and nothing lives. Lost contexts live again.
inline void ExpectNothingLeft() {
  fake_cuda_recover();
  std::string findings, alive;
  fake_cuda_take_findings(findings);
  EXPECT_EQ(findings, "");
  fake_cuda_alive(alive);
  EXPECT_EQ(alive, "");
}

}  // namespace sluice::fake_cuda
