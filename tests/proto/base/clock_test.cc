#include "proto/base/clock.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/child.h"

namespace sluice {
namespace {

constexpr char kTold[] = "SLUICE_TEST_CLOCK";

// The test runs itself in two time namespaces. The environment variable kTold
// has the time that the outer process read.
TEST(MonotonicClock, TheClockReadsTheSameInEveryTimeNamespace) {
  if (const char* told = std::getenv(kTold)) {
    EXPECT_NEAR(MonotonicSeconds(), std::stod(told), 1000);
    return;
  }
  for (const char* ahead : {"1000000", "0"}) {
    const auto child = testing::Child::Spawn(
        {"/usr/bin/unshare", "--user", "--map-root-user", "--time", "--fork",
         "--monotonic", ahead,
         std::filesystem::read_symlink("/proc/self/exe").string(),
         "--gtest_filter=MonotonicClock.*"},
        {kTold + ("=" + std::to_string(MonotonicSeconds()))});
    const testing::ChildResult result = child->Join();
    if (result.err.find("unshare") != std::string::npos) {
      GTEST_SKIP() << result.err;
    }
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
}

}  // namespace
}  // namespace sluice
