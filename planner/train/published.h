// The papers' tables, as shipped in tables/ (internal to planner/train).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/train/settings.h"

namespace sluice::planner::train {

// A cell with an MFU, or with the word that it ran out of memory.
struct PublishedCell {
  std::string table;  // "main" or "ablation"
  std::string label;  // the paper's name of the method
  std::string model;  // one of FindModel
  int64_t gpus = 0;
  int64_t seq_len = 0;
  std::optional<double> mfu_percent;  // none: out of memory
  Method method = Method::kMemo;
  GivenSettings settings;  // empty where the paper names none
};

// A longest context.
struct PublishedLength {
  std::string model;
  std::string hardware;  // one of FindHardware
  int64_t gpus = 0;
  int64_t tokens = 0;
  bool or_more = false;  // nothing longer was tried
};

// All of tables 3 to 7 of MEMO that is shipped, in the files' order.
std::vector<PublishedCell> PublishedCells();
// FPDT's table 1.
std::vector<PublishedLength> PublishedLengths();

}  // namespace sluice::planner::train
