// Runs a check in its own process: a crash, a hang or a kill fails only it.
// Thread safety: one check at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "deploy/bundle/verify/check.h"

namespace sluice::verify {

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
