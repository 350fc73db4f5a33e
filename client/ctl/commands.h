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
  // Flags of budget set, reserve and evict.
  std::string user;
  std::string cgroup;
  std::string job;
  std::string gpu;
  std::string host;
  // Flags of reserve.
  std::optional<uint32_t> pool_gpu, pool_numa;
  std::string memory;
  // Flags of evict and drain.
  bool kill = false;
  std::string reason;
};

// Sets `admin` if a flag implies it, and fills in sockets. Call it first.
void FillDefaults(Flags& flags);

// These return the text to print.
using Command = absl::StatusOr<std::string>(const Flags& flags);
Command ShowStatus, ShowJobs, ShowBandwidth, ShowPlan, ShowBudgets;
Command WriteBundle, Measure, Forget, ChangeBudget, ReserveMemory, EvictJob,
    DrainNode, UndrainNode;
// These print once or, depending on the flags, until Ctrl-C. After the first
// query, a failed query is no error. They handle SIGINT and SIGTERM, so call
// them before other threads start.
Command ShowTop, ShowEvents;
// Prints the doctor's findings. Returns 1 if one of them is a problem, else 0.
int ShowDoctor(const Flags& flags);

}  // namespace sluice::ctl
