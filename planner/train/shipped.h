// hardware/*.toml and tables/*.csv, built into the library and sorted by name.
// CMake generates the definitions (shipped.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace sluice::planner::train {

struct ShippedFile {
  std::string_view name;  // without folder and extension
  std::string_view text;
};

const std::vector<ShippedFile>& ShippedHardware();
const std::vector<ShippedFile>& ShippedTables();

}  // namespace sluice::planner::train
