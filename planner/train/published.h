// The papers' tables (tables/), and the evidence that they give for estimates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/train/settings.h"

namespace sluice::planner::train {

// A cell of a table: a run's MFU, or "out of memory".
struct PublishedCell {
  std::string table;  // "main" or "ablation"
  std::string label;  // the paper's name for the method
  std::string model;  // a name for FindModel
  int64_t gpus = 0;
  int64_t seq_len = 0;
  std::optional<double> mfu_percent;  // unset if it ran out of memory
  Method method = Method::kMemo;
  GivenSettings settings;  // empty if the paper gives none
};

// The longest context that a paper reports for a model and machine.
struct PublishedLength {
  std::string model;
  std::string hardware;  // a name for FindHardware
  int64_t gpus = 0;
  int64_t tokens = 0;
  bool or_more = false;  // the paper tried no greater length
};

// A figure that a publication reports for its own system.
struct PublishedRow {
  std::string publication, model, hardware;
  std::optional<double> host_bytes;  // per node; unset for the profile's value
  int64_t gpus = 0;
  int64_t seq_len = 0;  // 0 if `quantity` is "longest"
  int64_t global_batch = 1;
  std::optional<Method> method;  // unset if no method models the system
  GivenSettings settings;
  std::string quantity;  // "tokens/s/gpu", "mfu_pct" (points), "longest"
  double value = 0;
  bool judged = false;  // false if a constant was fitted to the figure
};

// Returns the cells of MEMO's tables 3 to 7, in the files' order.
std::vector<PublishedCell> PublishedCells();
std::vector<PublishedLength> PublishedLengths();  // FPDT's table 1
std::vector<PublishedRow> PublishedRows();

// The profile of the machine on which MEMO's tables were measured.
inline constexpr const char* kMemoHardware = "a800-80g";

// Citations of the tables that validate a method's figures on a machine; empty
// if no table does.
struct Evidence {
  std::string speed;   // for MFU, tokens/s, step seconds
  std::string memory;  // for what fits and the longest sequence
};

// A request with a changed copy of a shipped profile has no evidence.
Evidence EvidenceOf(const Request& request);

}  // namespace sluice::planner::train
