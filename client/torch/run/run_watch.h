// An observer of a run's progress (run_context.h).
#pragma once

#include <cstdint>

namespace sluice::runtime {

// Reports long phases to the user. Called on the compute thread.
class RunWatch {
 public:
  virtual ~RunWatch() = default;
  // Called when a calibration begins: a step over a few chunks. Its results are
  // dropped.
  virtual void BeginCalibration(int64_t layers, int64_t chunks) = 0;
  // Called when the daemon is asked for a plan, and when it has answered.
  virtual void BeginPlanning() = 0;
  virtual void EndPlanning() = 0;
};

}  // namespace sluice::runtime
