// The facts that the doctor's checks examine, as plain data. read_facts.h reads
// them from this machine; tests invent them.
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

// Facts from the daemon's snapshot.
struct DaemonFacts {
  absl::Status reached;  // if not OK, no other field is set
  std::string version, driver;
  uint64_t generation = 0;
  int64_t sessions = 0;
  struct Drained {
    std::string by, reason;
  };
  std::optional<Drained> drained;
  Bytes host_pools;
  // Numbers of all links, of links with a configured speed, and of links with a
  // measured speed. `measured_waits`: the daemon will use the measured speeds
  // only once no rank is attached.
  int links = 0, links_configured = 0, links_measured = 0;
  bool measured_waits = false;
  // The kind of pinned host memory, and the reason if it is the slower kind.
  // Empty if GPUs are simulated or the daemon does not state it.
  std::string host_memory, host_memory_why;
  // The reasons why GPUs cannot be used. Each ends with ": " and the command
  // that solves it.
  std::vector<std::string> gpu_faults;
  // A process that has memory but no session.
  struct Holder {
    int pid = 0;
    uid_t user = 0;
    std::string command;
    Bytes held;
  };
  std::vector<Holder> holders;
  // The TCP address of the daemon's metrics, or empty; and the reason why the
  // daemon does not listen there yet.
  std::string http, http_fault;
};

// The daemon's process. If no daemon runs, these are the facts of this process,
// because a daemon started by hand would get its limits.
struct ProcessFacts {
  std::optional<int> pid;  // unset: this process
  // True if /proc does not show `pid` (hidepid). The limits are then this
  // process's.
  bool hidden = false;
  // The process's command line and working folder; empty if not visible.
  std::vector<std::string> command;
  std::string folder;
  // Unset: unlimited.
  std::optional<int64_t> locked_bytes;
  std::optional<int64_t> open_files;  // the hard limit
  std::optional<MemoryLimit> memory;
  std::string memory_nodes;  // NUMA nodes: "0-1"; empty: unknown
  std::optional<uid_t> user;
};

// The systemd unit sluiced.service. Set if systemd has the unit and the socket
// is in the unit's folder.
struct UnitFacts {
  bool active = false;
  std::string status;  // "serving"
  int64_t store_most = 0, stored = 0;
};

struct DriverFacts {
  std::string device;  // evidence of an NVIDIA GPU; empty: none
  bool module_loaded = false;
  std::string fault;  // why the driver cannot be used; empty: it can
  // Whether each GPU stays initialised while no process uses it (persistence
  // mode); unset if nvidia-smi gave no answer.
  std::optional<std::vector<bool>> persistence;
};

struct MachineFacts {
  std::string online_nodes;  // NUMA nodes: "0-1"
  int64_t huge_pages = 0;
  Bytes huge_page;
};

struct FileFacts {
  // kHidden: the file is in a folder that this user may not read.
  enum class Seen { kThere, kMissing, kHidden };
  std::string path;
  Seen seen = Seen::kMissing;
  std::string owner, group;
  mode_t mode = 0;
  bool usable = false;  // this user may read and write it
};

struct Facts {
  std::string version;  // of this sluicectl
  std::string user;     // name of the user that runs this sluicectl
  // The folder of sluicectl and the other programs, with a final "/". Empty if
  // root's shell finds the programs without it.
  std::string programs;
  bool makes_folder = false;  // this user may make the runtime folder
  // The user is in the group of `admin`, but this takes effect at the next
  // login.
  bool joins_admin_group = false;
  DaemonFacts daemon;
  ProcessFacts process;
  std::optional<UnitFacts> unit;
  bool keeper = false;  // a sluiced-keeper runs for the runtime folder
  DriverFacts driver;
  MachineFacts machine;
  // The user of the process that listens at `daemon.http`; unset if none is
  // visible.
  std::optional<uid_t> http_listener;
  FileFacts folder, session, admin, policy;
  // Set if the policy is readable but its contents are wrong.
  std::string policy_fault;
};

}  // namespace sluice::ctl
