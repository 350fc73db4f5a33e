// The papers' tables, as shipped in tables/, and the estimates that they
// validate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/train/settings.h"

namespace sluice::planner::train {

// A cell of a table, with an MFU or "out of memory".
struct PublishedCell {
  std::string table;  // "main" or "ablation"
  std::string label;  // the paper's name of the method
  std::string model;  // one of FindModel
  int64_t gpus = 0;
  int64_t seq_len = 0;
  std::optional<double> mfu_percent;  // unset: out of memory
  Method method = Method::kMemo;
  GivenSettings settings;  // empty if the paper gives none
};

// A published longest context.
struct PublishedLength {
  std::string model;
  std::string hardware;  // one of FindHardware
  int64_t gpus = 0;
  int64_t tokens = 0;
  bool or_more = false;  // nothing longer was tried
};

// A figure that a publication reports for its own system.
struct PublishedRow {
  std::string publication, model, hardware;
  std::optional<double> host_bytes;  // per node; unset: the profile's
  int64_t gpus = 0;
  int64_t seq_len = 0;  // 0 for "longest"
  int64_t global_batch = 1;
  std::optional<Method> method;  // unset: no method here models that system
  GivenSettings settings;
  std::string quantity;  // "tokens/s/gpu", "mfu_pct" (points), "longest"
  double value = 0;
  bool judged = false;  // false: it fitted a constant and is not counted
};

// Returns the shipped cells of MEMO's tables 3 to 7, in the files' order.
std::vector<PublishedCell> PublishedCells();
// Returns FPDT's table 1.
std::vector<PublishedLength> PublishedLengths();
std::vector<PublishedRow> PublishedRows();

// The profile of the machine on which MEMO's tables were measured.
inline constexpr const char* kMemoHardware = "a800-80g";

// Citation of the table that validates a method's figures on a machine. Empty:
// "not validated".
struct Evidence {
  std::string speed;   // MFU, tokens/s, step seconds
  std::string memory;  // what fits, the longest sequence
};

// Returns the evidence, from the shipped tables and the profile that they were
// measured on. A changed copy of a profile is another machine.
Evidence EvidenceOf(const Request& request);

}  // namespace sluice::planner::train
