// Writes the measurements of a node as the hardware file that the planner reads
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

// Returns the peak FLOP/s of dense bf16 products from the shipped profile of
// this GPU, or 0 if there is none.
absl::StatusOr<double> PeakFlopsOf(const std::string& gpu_name,
                                   double memory_bytes);

struct HardwareFile {
  // The values that ReadHardware must return for `text`.
  planner::train::Hardware hardware;
  std::string text;
};

// Returns a hardware file with the measured values. The other values are taken
// from the shipped profile of the same GPU, or of an H100 if there is none.
// Each line says where its value is from.
absl::StatusOr<HardwareFile> HardwareFileOf(const MeasuredNode& node);

}  // namespace sluice::verify
