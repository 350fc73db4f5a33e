// Compares text with a reviewed file in the tree. With SLUICE_UPDATE_GOLDEN=1
// in the environment, replaces the file's text.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "tests/support/places.h"

namespace sluice::testing {

inline void ExpectGolden(const std::string& text, std::string_view in_tree) {
  const std::string path = InTree(in_tree);
  if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
  }
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(text, golden.str()) << "SLUICE_UPDATE_GOLDEN=1 rewrites " << path;
}

}  // namespace sluice::testing
