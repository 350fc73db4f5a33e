// The table of the kit's checks, and the facts that a check receives.
// Thread safety: a check is the only code in its process.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "deploy/bundle/verify/result.h"

namespace sluice::verify {

// Subfolder of the work folder, not archived.
inline constexpr char kScratch[] = "scratch";

struct Surroundings {
  const char* check = "";  // its name
  std::string work;        // this check's folder; its files go into the archive
  std::vector<int> gpus;   // the free ones, as this process numbers them
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

// Returns the checks in the order in which they run.
std::span<const Check> Checks();
// Returns null if there is no check of that name.
const Check* FindCheck(const std::string& name);

// Makes programs that are started from now on see these GPUs, in this order;
// `gpus` are indices as this process numbers them.
void ShowOnly(const std::vector<int>& gpus);

// Each check is defined in its own file.
Result RunSurvey(const Surroundings&);  // checks.cc: finds the free GPUs
Result RunDoctor(const Surroundings&);
Result RunConformance(const Surroundings&);
Result RunRules(const Surroundings&);
Result RunKernels(const Surroundings&);
Result RunLinks(const Surroundings&);
Result RunDaemon(const Surroundings&);
Result RunTorch(const Surroundings&);  // torch.cc: every check of torch

// ---- A check's process: a crash, a hang or a kill fails only this check ----

struct CheckProcess {
  std::string program;  // path of this program
  const Check* check = nullptr;
  std::string work;  // the work folder of all checks
  std::string gpus, busy, python;
  std::optional<absl::Duration> limit;  // replaces the table's limit
  // Called ten times a second; true: the check is killed.
  std::function<bool()> stopped;
};

// When this returns, all processes that the check started have ended.
Result RunInProcess(const CheckProcess& process);

// Runs the check in the child process, writes its result where RunInProcess
// reads it, and returns the exit status. If the parent process ends first,
// kills this process and all its descendants and deletes `work`, the folder of
// all checks. `gpus`: "0,2". `work` and `gpus` of `here` are filled in.
int ServeCheck(const Check& check, const std::string& work,
               const std::string& gpus, Surroundings here);

}  // namespace sluice::verify
