// What a run reports: each step's figures (progress line and JSONL file), the
// object of --json, the timeline of one step for the demo's report, and why a
// loss or gradient is not finite.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/copy/copy_engine.h"
#include "client/torch/run/plan_change.h"
#include "client/train/launch/options.h"
#include "client/train/watch/rank_watch.h"
#include "planner/stream/profile.h"
#include "planner/stream/settings.h"
#include "planner/stream/states.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"

namespace sluice::runtime {
class RankMemory;
}

namespace sluice::train {

class FlatModel;

struct SaveReport {
  int64_t done = 0, failed = 0;
  int64_t last_step = 0;                     // of the last successful save
  int64_t failed_step = 0;                   // the last step with a failed save
  std::string limited_by = "none", failure;  // of the last failure
};

struct RunReport {
  std::string run;  // the run's id
  std::string method;
  std::string attention;  // the kernel; empty: the run failed early
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
  std::optional<stream::StepPrice> price;    // of one sequence; unset as above
  std::string settings_why;  // reason for `settings`; empty: the user gave them
  stream::StatePlace states = stream::StatePlace::kHbm;  // optimizer states
  std::string states_why;  // reason for kHost, if the run chose it
  runtime::PlanSummary plan;
  std::vector<runtime::PlanChangeRecord> plan_changes;
  SaveReport saves;
  // The resumed checkpoint: its path, step and run's id ("" in format 1); null
  // for a new run.
  nlohmann::ordered_json resumed;
  int64_t log_lines_unwritten = 0;  // of --log-jsonl
  double grant_wait_seconds = 0;
  double stall_seconds = 0;
  bool interrupted = false;
};

// `status` gives ok, fits, limited_by and message.
std::string ToJson(const RunReport& report, const absl::Status& status);

// One step's figures, over all ranks unless said otherwise.
struct StepMetrics {
  int64_t step = 0;  // counts from 1
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  int64_t tokens = 0;
  double seconds = 0;
  double expected_seconds = 0;    // as calibrated; 0: unknown
  Bytes hbm_peak;                 // maximum over ranks
  Bytes hbm_total;                // one rank's region
  Bytes host;                     // sum over ranks
  double grant_wait_seconds = 0;  // rank 0
  double stall_seconds = 0;       // rank 0
  Bytes h2d, d2h;                 // rank 0
  int64_t plan_mismatches = 0;    // rank 0, since the start
  int64_t plan_changes = 0;       // offered so far in this run
  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

// A file of one JSON object per line. If the disk is full, lines wait and are
// written before the next one. So no line stays cut in two, and none is lost
// while less than 1 MiB of lines waits. A full disk does not end a run.
class JsonlFile {
 public:
  // Appends to an existing file, because a resumed run goes on in the same log.
  // InvalidArgument: it cannot be opened.
  static absl::StatusOr<std::unique_ptr<JsonlFile>> Open(
      const std::string& path);

  // Appends a line, without its newline. Returns a note if writing fails for
  // the first time, or works again; else an empty text.
  std::string Append(const std::string& line);
  int64_t waiting() const { return waiting_; }  // lines
  int64_t lost() const { return lost_; }

 private:
  JsonlFile() = default;

  std::string path_;
  UniqueFd fd_;
  std::string text_;  // waiting lines; the first may be partly written
  int64_t waiting_ = 0;
  int64_t lost_ = 0;
  bool failing_ = false;
};

class StepLog {
 public:
  // `file` may be null. The console outlives the log.
  StepLog(std::unique_ptr<JsonlFile> file, int64_t steps, Console* console)
      : file_(std::move(file)), steps_(steps), console_(console) {}
  void Step(const StepMetrics& metrics);
  int64_t unwritten() const;  // lines that are not in the file
  void Note(const std::string& text) { console_->Note(text); }

 private:
  const std::unique_ptr<JsonlFile> file_;
  const int64_t steps_;
  Console* const console_;
  absl::Time shown_ = absl::InfinitePast();
};

// Ends the timeline that RecordTimeline of the memory's allocator began, and
// returns it as JSON, with times in seconds of the monotonic clock.
std::string EndTrace(runtime::RankMemory& memory,
                     const std::vector<client::CopyRecord>& copies);
absl::Status WriteTrace(const std::string& path, const std::string& text);
// InvalidArgument: no file can be written there. Leaves nothing behind.
absl::Status CheckTracePath(const std::string& path);

// Returns the first parameter with a value that is not finite, and the value's
// index; empty if all are finite.
std::string FirstNonFinite(const FlatModel& model);

struct NonFinite {
  int64_t step = 0;        // counts from 1
  int64_t first_step = 1;  // of this invocation
  double loss = 0, norm = 0, lr = 0;
  std::string weight;    // FirstNonFinite of the weights before the update
  std::string gradient;  // FirstNonFinite of this rank's gradients
  bool resumed = false;
};
// Formats "step 7: the loss is nan and the gradient norm nan (lr 0.001, fp32);
// …; stopped before the update: …".
std::string Explain(const NonFinite& what, const RunOptions& options);

}  // namespace sluice::train
