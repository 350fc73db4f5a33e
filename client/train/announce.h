// A run's first lines: the model, the plan in words, the memory, and the
// expected time of a step.
// Thread safety: one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/train/launch/options.h"
#include "planner/stream/profile.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::train {

class Stepper;
struct StepperContext;

struct BannerFacts {
  RunOptions options;
  std::string attention;  // the attention kernel's name
  int ranks = 1;
  std::string cut;  // reason for the settings; empty: the user gave them
  std::vector<plan::ClassPlan> classes;    // empty for a baseline
  std::optional<stream::StepPrice> price;  // of one sequence
  std::string gpu;                         // "GPU 0"
  Bytes leased, gpu_total;
  Bytes used;  // before the first step, with rings and kept rows
  std::optional<Bytes> transient;  // the planned peak; unset: unknown yet
  Bytes host, host_limit;          // both 0: the method needs no host memory
  // Times of a calibrated step; 0 if they are not known before the first step.
  double compute_s = 0, copy_s = 0;
};

// Formats "12.3M", "256".
std::string Count(double number);
std::vector<std::string> Banner(const BannerFacts& facts);

// Returns the seconds of a step's segments for one sequence.
double ComputeSeconds(const plan::RankProfile& profile);
// Returns the seconds of a step's slower copy direction; speed 0: unlimited.
double CopySeconds(const plan::RankProfile& profile, const plan::RankPlan& plan,
                   double h2d_bytes_per_second, double d2h_bytes_per_second);

// Tells the watch which parts a step has and how long a step should take.
void ExpectSteps(const StepperContext& context, const Stepper& stepper);
// Prints the banner on rank 0. `cut`: BannerFacts::cut.
void Announce(const StepperContext& context, const Stepper& stepper,
              const std::string& cut);

}  // namespace sluice::train
