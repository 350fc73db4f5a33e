// What was measured of a node, as the file that the planner reads
// (planner/train/hardware.h, `sluicectl plan train --hardware FILE`).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "planner/train/hardware.h"

namespace sluice::verify {

struct MeasuredNode {
  std::string gpu_name;  // as the driver says it
  int64_t gpus = 0;
  double gpu_memory_bytes = 0;
  double host_memory_bytes = 0;
  // Per GPU, one direction, while all GPUs copy.
  double host_link_bytes_per_s = 0;
};

// FLOP/s of dense bf16 products, of the shipped profile of this GPU; 0: none is
// of it.
absl::StatusOr<double> PeakFlopsOf(const std::string& gpu_name,
                                   double memory_bytes);

struct HardwareFile {
  planner::train::Hardware hardware;  // what a reader is to find in it
  std::string text;
};

// What was not measured is a shipped profile's, of the same GPU where there is
// one; each line says which it is.
absl::StatusOr<HardwareFile> HardwareFileOf(const MeasuredNode& node);

}  // namespace sluice::verify
