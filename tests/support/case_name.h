// Names a parametrised case by its printed parameter, so that ctest and
// googletest list `Shapes/HeadExchangeTest.RowsArrive/4_ranks_8_heads`:
//   INSTANTIATE_TEST_SUITE_P(Shapes, HeadExchangeTest, ::testing::Values(…),
//                            ::sluice::testing::CaseName());
#pragma once

#include <cctype>
#include <string>

#include "gtest/gtest.h"

namespace sluice::testing {

struct CaseName {
  template <typename Parameter>
  std::string operator()(
      const ::testing::TestParamInfo<Parameter>& info) const {
    std::string name;
    for (const char c : ::testing::PrintToString(info.param)) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
        name += c;
      } else if (!name.empty() && name.back() != '_') {
        name += '_';
      }
    }
    if (!name.empty() && name.back() == '_') name.pop_back();
    return name.empty() ? "Empty" : name;  // googletest refuses ""
  }
};

}  // namespace sluice::testing
