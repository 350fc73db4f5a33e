// Whom a run tells what it does (run_context.h).
#pragma once

#include <cstdint>

namespace sluice::runtime {

// Told of what takes long, for people. Called on the compute thread.
class RunWatch {
 public:
  virtual ~RunWatch() = default;
  // A step over a few chunks begins; its numbers are dropped.
  virtual void BeginCalibration(int64_t layers, int64_t chunks) = 0;
  // The daemon was asked for a plan; it has answered.
  virtual void BeginPlanning() = 0;
  virtual void EndPlanning() = 0;
};

}  // namespace sluice::runtime
