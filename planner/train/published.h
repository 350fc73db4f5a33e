// The papers' tables, as shipped in tables/, and what they are evidence for.
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

// A figure that a publication has of its own system.
struct PublishedRow {
  std::string publication, model, hardware;
  std::optional<double> host_bytes;  // of a node; none: the profile's
  int64_t gpus = 0;
  int64_t seq_len = 0;  // 0 for "longest"
  int64_t global_batch = 1;
  std::optional<Method> method;  // none: no method here is that system's
  GivenSettings settings;
  std::string quantity;  // "tokens/s/gpu", "mfu_pct" (points), "longest"
  double value = 0;
  bool judged = false;  // else it fixed a constant, and counts nowhere
};

// All of tables 3 to 7 of MEMO that is shipped, in the files' order.
std::vector<PublishedCell> PublishedCells();
// FPDT's table 1.
std::vector<PublishedLength> PublishedLengths();
std::vector<PublishedRow> PublishedRows();

// The profile of the machine that MEMO's tables were measured on.
inline constexpr const char* kMemoHardware = "a800-80g";

// The table that figures of a method on a machine were judged on, as one would
// cite it; empty: none, "not validated".
struct Evidence {
  std::string speed;   // MFU, tokens/s, step seconds
  std::string memory;  // what fits, the longest sequence
};

// Follows from the shipped tables and from the profile that they were measured
// on: a changed copy of it is another machine.
Evidence EvidenceOf(const Request& request);

}  // namespace sluice::planner::train
