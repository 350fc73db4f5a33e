// The commands of sluicectl. They print to stdout, or one `error:` line to
// stderr, and return the exit status: 0 done; 2 a mistake of the caller (no
// such socket, plan, user, size); 1 any other failure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

int ShowStatus(const Flags& flags);
int ShowJobs(const Flags& flags);
// ShowTop and ShowEvents run until Ctrl-C.
int ShowTop(const Flags& flags);
int ShowEvents(const Flags& flags);
// Returns exit status 1 if the doctor found a problem.
int ShowDoctor(const Flags& flags);
int WriteBundle(const Flags& flags);
int ShowBandwidth(const Flags& flags);
int Measure(const Flags& flags);
int Forget(const Flags& flags);
int ShowPlan(const Flags& flags);
int ShowBudgets(const Flags& flags);
int ChangeBudget(const Flags& flags);
int ReserveMemory(const Flags& flags);
int EvictJob(const Flags& flags);
int DrainNode(const Flags& flags);
int UndrainNode(const Flags& flags);

}  // namespace sluice::ctl
