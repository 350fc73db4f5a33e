// What the doctor looks at, as plain data: read_facts.h reads it of this
// machine, tests make it up.
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

// What `sluiced` answered.
struct DaemonFacts {
  absl::Status reached;  // else nothing below is known
  std::string version, driver;
  uint64_t generation = 0;
  int64_t sessions = 0;
  struct Drained {
    std::string by, reason;
  };
  std::optional<Drained> drained;
  Bytes host_pools;
  // Links: all, those with a speed by the configuration, those with one that
  // was measured; and whether that waits for ranks to end.
  int links = 0, links_configured = 0, links_measured = 0;
  bool measured_waits = false;
  // What pinned host memory is, and why it is the lesser kind; empty:
  // simulated, or it did not say.
  std::string host_memory, host_memory_why;
  // Why GPUs cannot be used, each ending with ": " and what mends it.
  std::vector<std::string> gpu_faults;
  // Processes that have memory and no session.
  struct Holder {
    int pid = 0;
    uid_t user = 0;
    std::string command;
    Bytes held;
  };
  std::vector<Holder> holders;
  // Where it serves metrics over TCP; empty: nowhere. And why it does not yet.
  std::string http, http_fault;
};

// Its process; where none runs, this one, which is limited as a daemon that is
// started by hand would be.
struct ProcessFacts {
  std::optional<int> pid;  // none: it is this process
  // /proc shows nothing of `pid` (hidepid): the limits are this process'.
  bool hidden = false;
  // What it was started with, its program first, and where; empty: not seen.
  std::vector<std::string> command;
  std::string folder;
  // Absent: unlimited.
  std::optional<int64_t> locked_bytes;
  std::optional<int64_t> open_files;  // the hard limit
  std::optional<MemoryLimit> memory;
  std::string memory_nodes;  // of NUMA: "0-1"; empty: not known
  std::optional<uid_t> user;
};

// sluiced.service, where systemd has it and the socket is its own.
struct UnitFacts {
  bool active = false;
  std::string status;  // "serving"
  int64_t store_most = 0, stored = 0;
};

struct DriverFacts {
  std::string device;  // what shows that there is an NVIDIA GPU; empty: nothing
  bool module_loaded = false;
  std::string fault;  // why the driver cannot be used; empty: it can
  // Whether each GPU stays initialised while no process uses it; nullopt:
  // nvidia-smi did not tell.
  std::optional<std::vector<bool>> persistence;
};

struct MachineFacts {
  std::string online_nodes;  // of NUMA: "0-1"
  int64_t huge_pages = 0;
  Bytes huge_page;
};

struct FileFacts {
  enum class Seen { kThere, kMissing, kHidden };  // hidden: in a closed folder
  std::string path;
  Seen seen = Seen::kMissing;
  std::string owner, group;
  mode_t mode = 0;
  bool usable = false;  // this user may read and write it
};

struct Facts {
  std::string version;  // of this sluicectl
  std::string user;     // that runs it
  // Where this sluicectl and the programs beside it are, with a "/" at the end;
  // empty: where root's shell looks for programs.
  std::string programs;
  bool makes_folder = false;  // this user may make the runtime folder
  // Groups that the user is in since the last login; `admin`'s is one of those
  // that the user would be in after the next.
  bool joins_admin_group = false;
  DaemonFacts daemon;
  ProcessFacts process;
  std::optional<UnitFacts> unit;
  bool keeper = false;  // a sluiced-keeper runs for this folder
  DriverFacts driver;
  MachineFacts machine;
  // The user that listens at `daemon.http`; nullopt: none is seen.
  std::optional<uid_t> http_listener;
  FileFacts folder, session, admin, policy;
  std::string policy_fault;  // it could be read, and is not what it should be
};

}  // namespace sluice::ctl
