// What a rank hands to its launcher, and what a run prints at its end.
//
// Each rank writes one small JSON file; the launcher alone decides which
// line and which object the user sees, because only it knows who failed
// first and who only lost a peer. Without a launcher (torchrun, Slurm) every
// rank speaks for itself.
// Thread safety: values and pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/train/launch/options.h"
#include "client/train/plan_change.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"

namespace sluice::train {

// The plan as the report shows it.
struct PlanSummary {
  Bytes peak, lower_bound;
  std::string proved_by;
  int64_t mismatches = 0;
};

// What became of a run's saves.
struct SaveReport {
  int64_t done = 0, failed = 0;
  int64_t last_step = -1;                    // that was saved; negative: none
  int64_t failed_step = -1;                  // the last that could not be
  std::string limited_by = "none", failure;  // why not
};

// What a resumed run goes on from.
struct ResumeReport {
  std::string checkpoint;  // empty: it is new
  int64_t step = 0;
  std::string run;  // the checkpoint's; empty: of before runs had ids
};

// The object of --json for `train`.
struct RunReport {
  std::string run;  // its id
  std::string method;
  int64_t seq_len = 0;
  int ranks = 1;
  int64_t steps = 0;  // run by this invocation
  std::vector<double> losses;
  Bytes peak_hbm;  // most of any rank
  Bytes host;      // sum over the ranks
  Bytes hbm_per_gpu;
  double tokens_per_second = 0;  // global
  double seconds_per_step = 0;
  double alpha = 0;  // of this rank, as its fractions
  std::vector<plan::ClassPlan> fractions;
  PlanSummary plan;
  std::vector<PlanChangeRecord> plan_changes;  // while it ran, rank 0's
  SaveReport saves;
  ResumeReport resumed;
  int64_t log_lines_unwritten = 0;  // of --log-jsonl
  double grant_wait_seconds = 0;
  double stall_seconds = 0;
  bool interrupted = false;
};

// One rank's end. `report` is the object to print: RunReport's or check's.
struct RankResult {
  int exit = 0;
  std::string message;
  std::string limited_by = "none";
  bool caused_by_peer = false;
  bool interrupted = false;
  std::string report;  // JSON text
};

// The object of --json; `status` gives fits, limited_by and message.
std::string ToJson(const RunReport& report, const absl::Status& status);

RankResult MakeResult(const absl::Status& status, const std::string& report);
absl::Status WriteResult(const std::string& path, const RankResult& result);
absl::StatusOr<RankResult> ReadResult(const std::string& path);

}  // namespace sluice::train
