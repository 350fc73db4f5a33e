#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::ctl {

struct Flags {
  std::string socket;
  std::string admin_socket;
  bool admin = false;  // use the admin socket, which shows everything
  bool json = false;
  std::string plan;
  bool explain = false;
  // Flags of top and events.
  bool follow = false;
  bool once = false;
  double interval_s = 1;
  // Flags of support-bundle and bandwidth measure.
  std::string out;
  int64_t journal_lines = 2000;
  // Flags of bandwidth measure.
  double seconds = 1;
  bool beside_jobs = false;
  bool keep = false;
  // Flags of budget set, reserve, evict and drain.
  std::string user;
  std::string cgroup;
  std::string job;
  std::string gpu;
  std::string host;
  // Flags of reserve.
  std::optional<uint32_t> pool_gpu, pool_numa;
  std::string memory;
  bool kill = false;
  std::string reason;
};

// Fills in what other flags imply. Call it before a command.
void FillDefaults(Flags& flags);

// These return the text to print.
using Command = absl::StatusOr<std::string>(const Flags& flags);
Command ShowStatus, ShowJobs, ShowBandwidth, ShowPlan, ShowBudgets;
Command WriteBundle, Measure, Forget, ChangeBudget, ReserveMemory, EvictJob,
    DrainNode, UndrainNode;
// These print until Ctrl-C, also while the daemon is gone, and return an error
// only if the first query fails. They handle SIGINT and SIGTERM, so call them
// before other threads start.
Command ShowTop, ShowEvents;
// Prints, and returns 1 if the doctor found a problem.
int ShowDoctor(const Flags& flags);

}  // namespace sluice::ctl
