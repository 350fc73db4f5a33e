// The kit's checks: their table, what each receives and returns, and its
// process. Thread safety: a check is the only code in its process.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::verify {

// A skipped check never counts as passed.
enum class Status { kPassed, kFailed, kSkipped };

struct Result {
  std::string name;
  Status status = Status::kFailed;
  double seconds = 0;
  nlohmann::json value;
  std::string expected;
  std::string reason;  // empty if it passed
  // False if the user did not request the check, which then does not count.
  bool asked = true;
};

inline Result Passed(nlohmann::json value, std::string expected) {
  return {.status = Status::kPassed,
          .value = std::move(value),
          .expected = std::move(expected)};
}
inline Result Failed(nlohmann::json value, std::string expected,
                     std::string reason) {
  return {.status = Status::kFailed,
          .value = std::move(value),
          .expected = std::move(expected),
          .reason = std::move(reason)};
}
inline Result Failed(nlohmann::json value, std::string expected,
                     const absl::Status& why) {
  return Failed(std::move(value), std::move(expected),
                std::string(why.message()));
}
inline Result Skipped(std::string reason, nlohmann::json value = {}) {
  return {.status = Status::kSkipped,
          .value = std::move(value),
          .reason = std::move(reason)};
}

const char* Name(Status status);
// Formats {name, status, seconds, value, expected, reason}.
nlohmann::json ToJson(const Result& result);
// Reads the result that a process wrote to `path`. Returns a failure if the
// file has no result, or if `bad_end` is not empty. `bad_end` says how the
// process ended badly; the returned reason is the file's and then `bad_end`.
Result ReadResult(const std::string& path, const std::string& bad_end);

// Returns the last line of a program's output that is not empty, which usually
// has the reason of a failure; "" if there is none.
std::string LastLine(const std::string& text);

// Subfolder of the work folder, not archived.
inline constexpr char kScratch[] = "scratch";

struct Surroundings {
  const char* check = "";  // the check's name
  std::string work;        // this check's folder; its files go into the archive
  std::vector<int> gpus;   // the free GPUs, as this process numbers them
  std::string busy;        // the busy GPUs, one line for users; may be empty
  std::string python;      // absolute path of the user's Python with torch
  absl::Duration limit;
};

struct Check {
  const char* name;
  const char* what;  // one line for users
  absl::Duration limit;
  Result (*run)(const Surroundings&);
  bool needs_gpu = true;
  // Tests the user's torch on one GPU, which requires --python.
  bool needs_python = false;
};

std::span<const Check> Checks();
// Returns null if there is no check of that name.
const Check* FindCheck(const std::string& name);

// Makes programs that are started from now on see these GPUs, in this order;
// `gpus` are indices as this process numbers them.
void ShowOnly(const std::vector<int>& gpus);

// Returns the peak FLOP/s of dense bf16 products in this GPU's shipped profile,
// or 0 if no profile for the GPU is shipped.
absl::StatusOr<double> PeakFlopsOf(const std::string& gpu_name,
                                   double memory_bytes);

// Each check is in the file of its name; conformance and kernels in suite.cc.
Result RunSurvey(const Surroundings&);  // checks.cc: finds the free GPUs
Result RunDoctor(const Surroundings&);
Result RunConformance(const Surroundings&);
Result RunRules(const Surroundings&);
Result RunKernels(const Surroundings&);
Result RunLinks(const Surroundings&);
Result RunDaemon(const Surroundings&);
Result RunTorch(const Surroundings&);  // torch.cc: every check of torch

// ---- A check's process: a crash, a hang or a kill fails only this check ----

// Returns the paths of this program, and of another file in its folder.
std::string SelfPath();
std::string Beside(const std::string& name);

// Prints a line at once, so that the log shows where a killed check was.
void PrintLine(const std::string& line);

// Calls `done` every 10 ms. Returns whether `done` returned true by `until`.
bool AwaitTrue(absl::Time until, absl::FunctionRef<bool()> done);

// Runs the check in a process of its own. `here` has the work folder of all
// checks, and the limit, which replaces the table's if it is above 0. `stopped`
// is called ten times a second; if it returns true, the check is killed. When
// RunInProcess returns, all processes that the check started have ended.
Result RunInProcess(const Check& check, const Surroundings& here,
                    bool (*stopped)());

// ---- Modes in which this program starts itself; each returns its status ----

// Runs a check in the child process, and writes its result where RunInProcess
// reads it. If the parent process ends first, kills this process and all its
// descendants and deletes the work folder of all checks.
inline constexpr char kBeACheck[] = "--check";
int BeACheck(const std::vector<std::string>& arguments);

// Runs a rank that fills memory of the kit's daemon (daemon.cc).
inline constexpr char kBeATenant[] = "--tenant";
int BeATenant(const std::vector<std::string>& arguments);

// ---- Descendants of this process, also those that have left its group ----

// Makes this process the parent of descendants that become orphans from now on.
void AdoptOrphans();

// Returns whether `child` has ended but has not been reaped.
bool HasEnded(pid_t child);

// Returns the living descendants, children before grandchildren.
std::vector<pid_t> Descendants(pid_t of);

// Kills and reaps all descendants. Gives up on a process that does not die
// within some seconds, such as one inside a driver call.
void EndDescendants();

// Waits for the child's end, and returns how it ended: "ended by signal 9
// (Killed)"; empty for status 0.
std::string Reap(pid_t child);

}  // namespace sluice::verify
