// Starts the ranks of a run on this node and waits until all have ended.
//
// Each rank runs this binary with torchrun's variables. If one fails, the
// others have kGrace to end by themselves; then they get SIGTERM, then SIGKILL.
// All are gone kLimit after the first one failed. SIGINT, SIGTERM and SIGHUP
// are forwarded once, so that the ranks save and end; a second signal kills
// them (except SIGHUP, of which a closing terminal may send several). A rank
// that is late by its progress page (watch/rank_page.h) is named, and ends the
// run after --end-after.
// Thread safety: one thread, which must be the process's first.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/train/launch/gpu_choice.h"
#include "client/train/launch/options.h"

namespace sluice::train {

inline constexpr absl::Duration kGrace = absl::Seconds(2);
inline constexpr absl::Duration kLimit = absl::Seconds(4);

// Blocks SIGINT, SIGTERM, SIGCHLD and, unless it is ignored, SIGHUP until
// Launch handles them. Call it before actions that must be undone on Ctrl-C.
void HoldSignals();

// Runs `binary arguments` as options.ranks ranks on `gpus` (empty: each rank
// chooses its GPU). Prints the line or object that the user sees, and returns
// the exit status.
int Launch(const RunOptions& options, const std::string& binary,
           const std::vector<std::string>& arguments, const std::string& socket,
           const std::vector<GpuPlace>& gpus = {});

}  // namespace sluice::train
