// The lines that a run prints before its first step: the model, the plan in
// words, the memory, and the expected time of a step.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/stream/model_shape.h"
#include "planner/stream/profile.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::train {

struct BannerFacts {
  stream::ModelShape model;
  std::string dtype, method, attention;
  int ranks = 1;
  int64_t seq_len = 0, sequences = 1;  // of a step
  int64_t chunk = 0;                   // 0: the sequence is not cut
  int64_t rerun_chunks = 0, rerun_layers = 1;
  std::string cut;  // the reason; empty: the user gave the settings
  std::vector<plan::ClassPlan> classes;    // empty: a baseline
  std::optional<stream::StepPrice> price;  // of one sequence
  // Of this rank.
  std::string gpu;  // "GPU 0"
  Bytes leased, gpu_total;
  bool asked = false;  // leased by --hbm
  Bytes used;          // before the first step, with rings and kept rows
  std::optional<Bytes> transient;  // planned; unset: not known yet
  Bytes host, host_limit;          // both 0: the method needs none
  bool host_asked = false;         // --host is the limit
  // Of a calibrated step; 0: not known before the first.
  double compute_s = 0, copy_s = 0;
};

// Formats "12.3M", "256".
std::string Count(double number);
// Formats "swapped: k, v; recomputed: norm1; 40 % kept, 60 % swapped: ffn_up".
std::string PlanInWords(const std::vector<plan::ClassPlan>& classes);
std::vector<std::string> Banner(const BannerFacts& facts);

// ComputeSeconds returns the seconds of a step's segments (one sequence).
// CopySeconds returns those of the step's longer copy stream at these speeds
// (0: unlimited).
double ComputeSeconds(const plan::RankProfile& profile);
double CopySeconds(const plan::RankProfile& profile, const plan::RankPlan& plan,
                   double h2d_bytes_per_second, double d2h_bytes_per_second);

}  // namespace sluice::train
