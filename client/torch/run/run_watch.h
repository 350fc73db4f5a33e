#pragma once

#include <cstdint>

namespace sluice::runtime {

// Reports long phases to the user. Called on the compute thread.
class RunWatch {
 public:
  virtual ~RunWatch() = default;
  // A calibration begins: a step over a few chunks. Its results are dropped.
  virtual void BeginCalibration(int64_t layers, int64_t chunks) = 0;
  virtual void BeginPlanning() = 0;
  virtual void EndPlanning() = 0;
};

}  // namespace sluice::runtime
