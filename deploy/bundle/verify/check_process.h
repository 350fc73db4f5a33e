// A check in a process of its own, and the side of it that starts it: a crash,
// a hang or a kill is that check's failure and nothing else's.
//
// Thread safety: one at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "deploy/bundle/verify/check.h"

namespace sluice::verify {

struct CheckProcess {
  std::string program;  // this one
  const Check* check = nullptr;
  std::string work;  // for all checks
  std::string gpus, busy, python;
  std::optional<absl::Duration> limit;  // instead of the table's
  // Asked ten times a second: true ends it.
  std::function<bool()> stopped;
};

// Nothing of it runs any more when this returns.
Result RunInProcess(const CheckProcess& process);

// The other side, in the child: writes the result where the starter looks for
// it. When the starter is gone, however, all that it started and the folder of
// all checks go too.
// `gpus`: "0,2"; `here` has the rest but its own folder, which is made here.
int ServeCheck(const Check& check, const std::string& work,
               const std::string& gpus, Surroundings here);

}  // namespace sluice::verify
