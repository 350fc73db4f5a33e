// The facts that the doctor judges, as plain data: read_facts.h reads them from
// this machine, tests make them up.
//
// Thread safety: values.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/cgroup.h"
#include "proto/base/units.h"

namespace sluice::ctl {

// The runtime folder of sluiced.service.
inline constexpr char kUnitsFolder[] = "/run/sluice";

// `sluiced`'s answer.
struct DaemonFacts {
  absl::Status reached;  // if not OK, nothing below is known
  std::string version, driver;
  uint64_t generation = 0;
  int64_t sessions = 0;
  struct Drained {
    std::string by, reason;
  };
  std::optional<Drained> drained;
  Bytes host_pools;
  // Counts of links: all, those with a configured speed, those with a measured
  // speed; and whether the measured speeds take effect only after ranks end.
  int links = 0, links_configured = 0, links_measured = 0;
  bool measured_waits = false;
  // The kind of pinned host memory, and the reason for the slower kind. Empty
  // if GPUs are simulated or the daemon does not tell.
  std::string host_memory, host_memory_why;
  // Why GPUs cannot be used; each ends with ": " and the command that mends it.
  std::vector<std::string> gpu_faults;
  // A process that has memory and no session.
  struct Holder {
    int pid = 0;
    uid_t user = 0;
    std::string command;
    Bytes held;
  };
  std::vector<Holder> holders;
  // The TCP address of its metrics, or empty; and why it does not listen yet.
  std::string http, http_fault;
};

// The daemon's process. If none runs: this process, which has the limits of a
// daemon that is started by hand.
struct ProcessFacts {
  std::optional<int> pid;  // unset: this process
  // /proc does not show `pid` (hidepid); the limits are this process's.
  bool hidden = false;
  // Its command line and working folder; empty if not visible.
  std::vector<std::string> command;
  std::string folder;
  // Unset: unlimited.
  std::optional<int64_t> locked_bytes;
  std::optional<int64_t> open_files;  // the hard limit
  std::optional<MemoryLimit> memory;
  std::string memory_nodes;  // NUMA nodes: "0-1"; empty: not known
  std::optional<uid_t> user;
};

// sluiced.service, if systemd has it and the socket is the unit's.
struct UnitFacts {
  bool active = false;
  std::string status;  // "serving"
  int64_t store_most = 0, stored = 0;
};

struct DriverFacts {
  std::string device;  // evidence of an NVIDIA GPU; empty: none
  bool module_loaded = false;
  std::string fault;  // why the driver cannot be used; empty: it can
  // Whether each GPU stays initialised while no process uses it; unset if
  // nvidia-smi did not tell.
  std::optional<std::vector<bool>> persistence;
};

struct MachineFacts {
  std::string online_nodes;  // NUMA nodes: "0-1"
  int64_t huge_pages = 0;
  Bytes huge_page;
};

struct FileFacts {
  // kHidden: in a folder that this user may not read
  enum class Seen { kThere, kMissing, kHidden };
  std::string path;
  Seen seen = Seen::kMissing;
  std::string owner, group;
  mode_t mode = 0;
  bool usable = false;  // this user may read and write it
};

struct Facts {
  std::string version;  // of this sluicectl
  std::string user;     // the user that runs it
  // The folder of this sluicectl and its sibling programs, ending with "/";
  // empty if root's shell finds them.
  std::string programs;
  bool makes_folder = false;  // this user may make the runtime folder
  // The user belongs to the group of `admin`, but only from the next login on.
  bool joins_admin_group = false;
  DaemonFacts daemon;
  ProcessFacts process;
  std::optional<UnitFacts> unit;
  bool keeper = false;  // a sluiced-keeper runs for this folder
  DriverFacts driver;
  MachineFacts machine;
  // The user that listens at `daemon.http`; unset if none is visible.
  std::optional<uid_t> http_listener;
  FileFacts folder, session, admin, policy;
  std::string policy_fault;  // readable, but its contents are wrong
};

}  // namespace sluice::ctl
