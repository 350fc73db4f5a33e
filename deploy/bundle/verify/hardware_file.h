// Writes the measurements of a node as the planner's hardware file
// (planner/train/hardware.h, `sluicectl plan train --hardware FILE`).
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "planner/train/hardware.h"

namespace sluice::verify {

struct MeasuredNode {
  std::string gpu_name;  // the driver's name of the GPU
  int64_t gpus = 0;
  double gpu_memory_bytes = 0;
  double host_memory_bytes = 0;
  // Per GPU, in one direction, while all GPUs copy.
  double host_link_bytes_per_s = 0;
};

// Returns the peak FLOP/s of dense bf16 products by this GPU's shipped profile,
// or 0 if there is none.
absl::StatusOr<double> PeakFlopsOf(const std::string& gpu_name,
                                   double memory_bytes);

struct HardwareFile {
  // The values that ReadHardware must return for `text`.
  planner::train::Hardware hardware;
  std::string text;
};

// Values that were not measured are those of the GPU's shipped profile, or of
// an H100's. Each line says where its value is from.
absl::StatusOr<HardwareFile> HardwareFileOf(const MeasuredNode& node);

}  // namespace sluice::verify
