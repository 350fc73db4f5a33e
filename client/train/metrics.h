// Shows each step's figures, on rank 0: the progress line for people, the JSONL
// file for programs.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/train/watch/console.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"

namespace sluice::train {

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

// A file of one JSON object per line. Lines that a full disk refuses wait and
// are written before the next one, so no line stays cut in two, and none is
// lost while fewer than 1 MiB of lines wait. A full disk does not end a run.
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
  std::string text_;  // waiting lines, all whole but the first
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

}  // namespace sluice::train
