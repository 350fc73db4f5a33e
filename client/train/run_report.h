// The object that a run prints at its end for --json.
// Thread safety: values and pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/run/plan_change.h"
#include "client/train/launch/options.h"
#include "planner/stream/profile.h"
#include "planner/stream/settings.h"
#include "planner/stream/states.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"

namespace sluice::train {

struct SaveReport {
  int64_t done = 0, failed = 0;
  int64_t last_step = -1;                    // saved; negative: none saved
  int64_t failed_step = -1;                  // the last step with a failed save
  std::string limited_by = "none", failure;  // of the last failure
};

// The checkpoint that a run resumed.
struct ResumeReport {
  std::string checkpoint;  // empty: a new run
  int64_t step = 0;
  std::string run;  // the checkpoint's; empty in format 1
};

struct RunReport {
  std::string run;  // its id
  std::string method;
  std::string attention;  // the kernel; empty if the run failed too early
  int64_t seq_len = 0;
  int ranks = 1;
  int64_t steps = 0;  // run by this invocation
  std::vector<double> losses;
  Bytes peak_hbm;  // maximum over ranks
  Bytes host;      // sum over the ranks
  Bytes hbm_per_gpu;
  double tokens_per_second = 0;  // global
  double seconds_per_step = 0;
  double alpha = 0;  // of this rank
  std::vector<plan::ClassPlan> fractions;
  std::optional<stream::Settings> settings;  // unset for a baseline
  std::optional<stream::StepPrice> price;    // of one sequence; as settings
  std::string settings_why;                  // empty: the user gave them
  stream::StatePlace states = stream::StatePlace::kHbm;  // the optimizer's
  std::string states_why;  // empty: given, or in HBM
  runtime::PlanSummary plan;
  std::vector<runtime::PlanChangeRecord> plan_changes;
  SaveReport saves;
  ResumeReport resumed;
  int64_t log_lines_unwritten = 0;  // of --log-jsonl
  double grant_wait_seconds = 0;
  double stall_seconds = 0;
  bool interrupted = false;
};

// `status` gives fits, limited_by and message.
std::string ToJson(const RunReport& report, const absl::Status& status);

}  // namespace sluice::train
