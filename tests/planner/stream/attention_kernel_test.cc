// Tests the choice of kernels by a table of cases.
// tests/python/attention/kernel_choice_test.py tests the Python package with
// the same table.
#include "planner/stream/attention_kernel.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/places.h"

namespace sluice::stream {
namespace {

bool Has(const std::string& text, const std::string& word) {
  return text.find(word) != text.npos;
}

TEST(AttentionKernel, AgreesWithTheTableInEachCase) {
  const std::map<std::string, AttentionKernel> asked = {
      {"auto", AttentionKernel::kAuto},
      {"flash", AttentionKernel::kFlash},
      {"efficient", AttentionKernel::kEfficient},
      {"cudnn", AttentionKernel::kCudnn}};
  const std::map<std::string, AttentionKernel> flash = {
      {"0", AttentionKernel::kFlash},
      {"3", AttentionKernel::kFa3},
      {"4", AttentionKernel::kFa4}};
  const std::map<std::string, int64_t> bytes = {
      {"bf16", 2}, {"fp16", 2}, {"fp32", 4}, {"fp64", 8}, {"bf16 and fp32", 0}};
  std::ifstream file(InTree("tests/planner/stream/attention_kernels.csv"));
  std::string line;
  std::getline(file, line);  // the columns' names
  int cases = 0;
  for (; std::getline(file, line); ++cases) {
    SCOPED_TRACE(line);
    std::vector<std::string> f;
    std::istringstream fields(line);
    for (std::string field; std::getline(fields, field, ',');) {
      f.push_back(field);
    }
    const AttentionBlock block = {.asked = asked.at(f[0]),
                                  .flash = flash.at(f[7]),
                                  .capability = std::stoi(f[1]),
                                  .element_bytes = bytes.at(f[2]),
                                  .head_dim = std::stoi(f[3]),
                                  .value_dim = std::stoi(f[4]),
                                  .keys = std::stoi(f[5]),
                                  .part = Has(f[6], "part"),
                                  .window = Has(f[6], "window"),
                                  .intervals = Has(f[6], "intervals"),
                                  .softcap = Has(f[6], "softcap")};
    if (f[8] == "refused") {
      EXPECT_TRUE(Refusal(block).has_value());
    } else {
      EXPECT_EQ(Name(KernelOf(block)), f[8]);
      if (f[0] != "auto") {
        EXPECT_EQ(Refusal(block), std::nullopt);
      }
    }
  }
  EXPECT_GT(cases, 40);
}

TEST(AttentionKernel, RefusalNamesKernelValueAndLimit) {
  EXPECT_EQ(Refusal({.asked = AttentionKernel::kCudnn,
                     .element_bytes = 2,
                     .head_dim = 136}),
            "cudnn takes heads of a multiple of 8 and at most 128, and this "
            "model's have 136");
  EXPECT_EQ(
      Refusal({.element_bytes = 2, .head_dim = 264}).value().substr(0, 11),
      "flash takes");
  EXPECT_EQ(Refusal({.element_bytes = 4, .head_dim = 256}), std::nullopt);
}

}  // namespace
}  // namespace sluice::stream
