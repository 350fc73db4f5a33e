// The facts that the doctor's checks examine, and functions that read them from
// this machine. Thread safety: one ReadFacts at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/cgroup.h"
#include "proto/base/units.h"

namespace sluice::ctl {

// The runtime folder of sluiced.service.
inline constexpr char kUnitsFolder[] = "/run/sluice";

struct DaemonFacts {
  absl::Status reached;       // if not OK, no other field is set
  std::string snapshot;       // of all users if this user is an administrator
  bool of_all_users = false;  // whether `snapshot` has all users
  std::string version, driver;
  uint64_t generation = 0;
  int64_t sessions = 0;
  struct Drained {
    std::string by, reason;
  };
  std::optional<Drained> drained;
  Bytes host_pools;
  // Numbers of all links, and of links with a configured or measured speed.
  int links = 0, links_configured = 0, links_measured = 0;
  // Measured speeds are not used before all ranks have detached.
  bool measured_waits = false;
  // The kind of pinned host memory, and the reason if it is the slower kind;
  // may be empty.
  std::string host_memory, host_memory_why;
  // Why GPUs cannot be used; each ends with ": " and the command that solves
  // it.
  std::vector<std::string> gpu_faults;
  // A process that has memory but no session.
  struct Holder {
    int pid = 0;
    uid_t user = 0;
    std::string command;
    Bytes held;
  };
  std::vector<Holder> holders;
  // The TCP address of metrics, and why nothing is served there; may be empty.
  std::string http, http_fault;
};

// Facts about the daemon's process. If no daemon runs, they are about this
// process, because a daemon started by hand would get this process's limits.
struct ProcessFacts {
  std::optional<int> pid;  // unset: this process
  // Whether /proc hides `pid` (hidepid); the limits are then this process's.
  bool hidden = false;
  // `command` and `folder` are empty if they are not visible.
  std::vector<std::string> command;
  std::string folder;
  // The limits; unset if there is no limit.
  std::optional<int64_t> locked_bytes;
  std::optional<int64_t> open_files;  // the hard limit
  std::optional<MemoryLimit> memory;
  std::string memory_nodes;  // NUMA nodes: "0-1"; empty: unknown
  std::optional<uid_t> user;
};

// The unit sluiced.service, which keeps descriptors for the next daemon.
struct UnitFacts {
  bool active = false;
  std::string status;                  // "serving"
  int64_t store_most = 0, stored = 0;  // limit and number of kept descriptors
};

struct DriverFacts {
  std::string device;  // evidence of an NVIDIA GPU; empty: none
  bool module_loaded = false;
  std::string fault;  // why the driver cannot be used; empty: it can
  // Persistence mode of each GPU; unset if nvidia-smi gave no answer.
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
  // The programs' folder, with a final "/"; empty if it is in root's PATH.
  std::string programs;
  bool makes_folder = false;  // this user may make the runtime folder
  // The user is in the group of `admin`, with effect from the next login.
  bool joins_admin_group = false;
  DaemonFacts daemon;
  ProcessFacts process;
  std::optional<UnitFacts> unit;  // set if systemd has the unit for this folder
  bool keeper = false;  // a sluiced-keeper runs for the runtime folder
  DriverFacts driver;
  MachineFacts machine;
  // The user that listens at `daemon.http`; unset if none is visible.
  std::optional<uid_t> http_listener;
  FileFacts folder, session, admin, policy;
  std::string policy_fault;  // what is wrong in `policy`, if it is readable
};

struct SocketPaths {
  std::string session, admin;
};

// Reads all facts and changes nothing. Facts that cannot be read are unset.
Facts ReadFacts(const SocketPaths& sockets);

// Returns the process that holds the file lock, or 0 if none is visible. In a
// runtime folder the daemon locks the file `lock`, the keeper `keeper.lock`.
int FindHolder(const std::string& lock);

// ---- What the kernel, systemd, nvidia-smi and sluiced print ----

// Returns a limit of /proc/PID/limits; nullopt if it is unlimited or missing.
enum class LimitKind { kSoft, kHard };
std::optional<int64_t> ToldLimit(const std::string& limits,
                                 const std::string& name, LimitKind kind);

// Returns the value from lines of "key: value" (/proc) or "key=value"
// (systemctl show); empty if there is no such line.
std::string ToldValue(const std::string& text, const std::string& key,
                      char separator = ':');

// Returns the process that holds a lock of the file, from /proc/locks; 0: none.
int ToldHolder(const std::string& locks, uint64_t device, uint64_t inode);

// Returns the user that listens at `address` ("127.0.0.1:9435"), or else at its
// port on another address. `sockets` is the text of /proc/net/tcp and tcp6.
std::optional<uid_t> ToldListener(const std::string& sockets,
                                  const std::string& address);

// Parses the output of `systemctl show`; nullopt if there is no such unit.
std::optional<UnitFacts> ToldUnit(const std::string& shown);

// Parses `nvidia-smi --query-gpu=persistence_mode --format=csv,noheader`.
std::optional<std::vector<bool>> ToldPersistence(const std::string& csv);

// Parses a snapshot (daemon/README.md). Internal: the text is not a snapshot.
absl::StatusOr<DaemonFacts> ToldDaemon(const std::string& snapshot);

struct StartedWith {
  std::optional<std::string> config;  // as given, possibly a relative path
  // All words except the program, the configuration and the runtime folder.
  std::vector<std::string> others;
};
// Parses the daemon's command line; `words` is empty if it is unknown.
StartedWith ReadStartedWith(const std::vector<std::string>& words);

}  // namespace sluice::ctl
