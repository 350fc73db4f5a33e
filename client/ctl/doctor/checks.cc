#include "client/ctl/doctor/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/ctl/text/format.h"
#include "kernels/device/driver.h"
#include "proto/base/simulated.h"
#include "proto/base/text.h"
#include "proto/wire.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;
using Seen = FileFacts::Seen;

// Indexed by Health.
constexpr const char* kHealthNames[] = {"ok", "warning", "problem"};

// Removes all changes to the unit in /etc, and restarts the unit.
constexpr const char* kShippedUnit =
    "sudo systemctl revert sluiced && sudo systemctl restart sluiced";

Finding Ok(std::string said, std::string fix = "") {
  return {"", Health::kOk, std::move(said), std::move(fix)};
}
Finding Warning(std::string said, std::string fix) {
  return {"", Health::kWarning, std::move(said), std::move(fix)};
}
Finding Problem(std::string said, std::string fix) {
  return {"", Health::kProblem, std::move(said), std::move(fix)};
}

bool Reached(const Facts& facts) { return facts.daemon.reached.ok(); }

std::string FolderOf(const Facts& facts) {
  return std::filesystem::path(facts.admin.path).parent_path().string();
}

// Returns the daemon's arguments for a keeper's command line, without the
// runtime folder, which the keeper adds.
std::string ItsArguments(const ProcessFacts& process) {
  const StartedWith with = ReadStartedWith(process.command);
  std::string words;
  if (with.config) {
    // Absolute, because the shell that runs the command is in another folder.
    const std::string whole =
        std::filesystem::path(process.folder) / *with.config;
    words += " --config " + ShellWord(whole);
  }
  for (const std::string& word : with.others) words += ' ' + ShellWord(word);
  return words.empty() ? "" : " --" + words;
}

std::string Sudo(const Facts& facts) {
  return facts.folder.owner == facts.user ? "" : "sudo ";
}

// The prefix of a command that must run as the runtime folder's owner.
std::string AsOwner(const Facts& facts) {
  const bool is_there = facts.folder.seen == Seen::kThere;
  const std::string& owner = facts.folder.owner;
  if (is_there ? owner == facts.user : facts.makes_folder) return "";
  if (!is_there || owner == "root") return "sudo ";
  return (facts.user == "root" ? "runuser -u " : "sudo -u ") +
         ShellWord(owner) + " -- ";
}

// Returns the command that starts the daemon as the folder's owner, or that
// restarts it under systemd.
std::string Start(const Facts& facts) {
  return facts.unit
             ? "sudo systemctl restart sluiced"
             : AsOwner(facts) + ShellWord(facts.programs + "sluiced-keeper") +
                   " --runtime-dir " + ShellWord(FolderOf(facts)) +
                   ItsArguments(facts.process);
}

// Returns the restart command, which ends sessions unless systemd is used.
std::string EndAndStart(const Facts& facts) {
  if ((facts.unit && facts.unit->active) || !facts.process.pid) {
    return Start(facts);
  }
  return fmt::format("{}kill {} && sleep 1 && {}", Sudo(facts),
                     *facts.process.pid, Start(facts));
}

std::string Reload(const Facts& facts) {
  if (facts.unit) return "sudo systemctl reload sluiced";
  return Sudo(facts) + (facts.process.pid
                            ? fmt::format("kill -HUP {}", *facts.process.pid)
                            : "pkill -HUP -x sluiced");
}

// Installs package files, because no apt repository has Sluice.
std::string Upgrade(const Facts& facts) {
  if (facts.unit || facts.programs.empty()) {
    return "sudo apt install ./sluice-daemon_*.deb ./sluicectl_*.deb";
  }
  return facts.keeper ? Reload(facts) : EndAndStart(facts);
}

std::string AsAdministrator(const Facts& facts, const std::string& command) {
  std::string words = facts.admin.usable ? "" : "sudo ";
  words += ShellWord(facts.programs + "sluicectl");
  if (FolderOf(facts) != kUnitsFolder) {
    words += " --socket " + ShellWord(facts.session.path) + " --admin-socket " +
             ShellWord(facts.admin.path);
  }
  return words + " " + command;
}

// Restarts the unit, because systemd reads FileDescriptorStoreMax= only then.
std::string LargerStore(int64_t most) {
  return fmt::format(
      "sudo mkdir -p /etc/systemd/system/sluiced.service.d && printf "
      "'[Service]\\nFileDescriptorStoreMax={0}\\nEnvironment=FDSTORE={0}\\n"
      "LimitNOFILE={1}\\n' | "
      "sudo tee /etc/systemd/system/sluiced.service.d/store.conf && sudo "
      "systemctl daemon-reload && sudo systemctl restart sluiced",
      most, std::max<int64_t>(65536, 4 * most));
}

// Returns "" if this user may already connect to the session socket.
std::string PathRemedy(const Facts& facts) {
  if (facts.session.seen == Seen::kHidden) {
    return "sudo chmod a+x " + ShellWord(facts.folder.path);
  }
  if (facts.session.usable) return "";
  return Sudo(facts) + "chmod a+rw " + ShellWord(facts.session.path);
}

Finding CheckDaemon(const Facts& facts) {
  const absl::Status& reached = facts.daemon.reached;
  if (reached.ok()) {
    return Ok(fmt::format("answers at {}", facts.session.path));
  }
  const std::string why(reached.message());
  switch (reached.code()) {
    case absl::StatusCode::kFailedPrecondition:
      // The daemon is frozen, or it and sluicectl share no protocol version.
      if (!why.starts_with(wire::kFrozen)) return Problem(why, Upgrade(facts));
      return Problem(why, facts.unit ? Start(facts) : Reload(facts));
    case absl::StatusCode::kPermissionDenied:
      return Problem(why, PathRemedy(facts));
    case absl::StatusCode::kDeadlineExceeded:
      if (!facts.unit && facts.process.pid) {
        return Problem(why, fmt::format("{}kill -CONT {}", Sudo(facts),
                                        *facts.process.pid));
      }
      [[fallthrough]];
    default:
      if (facts.unit || !facts.keeper) return Problem(why, EndAndStart(facts));
      // When the daemon is killed, the keeper starts another one.
      return Problem(
          why, facts.process.pid
                   ? fmt::format("{}kill {}", Sudo(facts), *facts.process.pid)
                   : "");
  }
}

Finding CheckVersion(const Facts& facts) {
  if (!Reached(facts)) {
    return Ok("sluicectl " + facts.version + "; no daemon states its version");
  }
  if (facts.daemon.version == facts.version) return Ok(facts.version);
  return Warning(fmt::format("sluiced is {}, this sluicectl {}",
                             facts.daemon.version, facts.version),
                 Upgrade(facts));
}

Finding CheckState(const Facts& facts) {
  if (facts.daemon.drained) {
    const auto& [by, reason] = *facts.daemon.drained;
    return Warning(
        fmt::format("drained by {}{}: nothing new is granted",
                    by.empty() ? "an administrator" : Printable(by),
                    reason.empty() ? "" : " (" + Printable(reason) + ")"),
        AsAdministrator(facts, "undrain"));
  }
  if (facts.unit && facts.unit->active && facts.unit->status != "serving") {
    return Warning(
        fmt::format("sluiced says: {}", facts.unit->status.empty()
                                            ? "nothing yet"
                                            : Printable(facts.unit->status)),
        "sudo journalctl -n 50 -u sluiced");
  }
  if (!Reached(facts)) return Ok("not known: no daemon answers");
  return Ok(fmt::format("serves, generation {}, {} session{}",
                        facts.daemon.generation, facts.daemon.sessions,
                        facts.daemon.sessions == 1 ? "" : "s"));
}

Finding CheckStore(const Facts& facts) {
  if (facts.unit && (facts.unit->active || !facts.process.pid)) {
    const UnitFacts& unit = *facts.unit;
    if (unit.store_most == 0) {
      return Problem(
          "systemd keeps nothing for the next daemon: sessions end "
          "when sluiced does",
          kShippedUnit);
    }
    const std::string said = fmt::format(
        "systemd keeps {} descriptors of at "
        "most {}",
        unit.stored, unit.store_most);
    if (unit.stored < unit.store_most) return Ok(said);
    return Warning(said + ": what comes now is not kept",
                   LargerStore(2 * unit.store_most));
  }
  if (facts.keeper) {
    return Ok("sluiced-keeper keeps what sluiced has");
  }
  if (!Reached(facts)) return Ok("no daemon answers: there is nothing to keep");
  return Warning(
      "nothing keeps what sluiced has: sessions end when it does, also by the "
      "command below",
      EndAndStart(facts));
}

std::string Rights(const FileFacts& file) {
  return fmt::format("{} of {}:{}, mode {:04o}", file.path, file.owner,
                     file.group, static_cast<unsigned>(file.mode & 07777));
}

Finding CheckFolder(const Facts& facts) {
  const FileFacts& folder = facts.folder;
  if (folder.seen != Seen::kThere) {
    return Ok(folder.path + " is not there: no daemon has made it");
  }
  if ((folder.mode & 022) == 0) return Ok(Rights(folder));
  return Problem(Rights(folder) + ": others may put their sockets there",
                 Sudo(facts) + "chmod go-w " + ShellWord(folder.path));
}

Finding CheckSessionSocket(const Facts& facts) {
  const FileFacts& socket = facts.session;
  if (socket.seen == Seen::kHidden) {
    return Problem(facts.user + " may not enter " + facts.folder.path,
                   PathRemedy(facts));
  }
  if (socket.seen != Seen::kThere) {
    return Ok(socket.path + " is not there: no daemon has made it");
  }
  const std::string fix = Sudo(facts) + "chmod a+rw " + ShellWord(socket.path);
  if (!socket.usable) {
    return Problem(Rights(socket) + ": " + facts.user + " may not connect",
                   fix);
  }
  if ((socket.mode & 0666) != 0666) {
    return Warning(Rights(socket) + ": not every user's ranks may connect",
                   fix);
  }
  return Ok(Rights(socket));
}

Finding CheckAdminSocket(const Facts& facts) {
  const FileFacts& socket = facts.admin;
  if (socket.seen != Seen::kThere) {
    return Ok(socket.path + " is not there: no daemon has made it");
  }
  if ((socket.mode & 007) != 0) {
    return Problem(Rights(socket) + ": everybody is an administrator",
                   Sudo(facts) + "chmod o-rwx " + ShellWord(socket.path));
  }
  if (socket.usable) return Ok(Rights(socket) + ": you are an administrator");
  if (facts.joins_admin_group) {
    return Warning(fmt::format("{}: {} is in that group from the next login on",
                               Rights(socket), facts.user),
                   "newgrp " + ShellWord(socket.group));
  }
  return Ok(Rights(socket) + ": you are no administrator; to become one",
            // Members of group root may do more than administer the daemon.
            socket.group == "root"
                ? AsAdministrator(facts, "--admin status")
                : fmt::format("sudo usermod -aG {} {}", ShellWord(socket.group),
                              ShellWord(facts.user)));
}

Finding CheckPolicy(const Facts& facts) {
  const FileFacts& policy = facts.policy;
  if (policy.seen == Seen::kHidden) {
    return Ok(policy.path + " is for the daemon's user only");
  }
  if (policy.seen == Seen::kMissing) {
    return Ok(policy.path +
              " is not there: administrators have set nothing, or [policy] "
              "folder names another");
  }
  if ((policy.mode & 022) != 0) {
    return Problem(Rights(policy) +
                       ": others may write to it, so a start is "
                       "refused",
                   Sudo(facts) + "chmod go-w " + ShellWord(policy.path));
  }
  if (!facts.policy_fault.empty()) {
    return Problem(fmt::format("{}: {}, so a start is refused", policy.path,
                               facts.policy_fault),
                   fmt::format("{0}mv {1} {1}.damaged", Sudo(facts),
                               ShellWord(policy.path)));
  }
  return Ok(Rights(policy));
}

Finding CheckLinks(const Facts& facts) {
  const DaemonFacts& daemon = facts.daemon;
  if (!Reached(facts) || daemon.links == 0) {
    return Ok("not known: no daemon tells of any");
  }
  if (daemon.measured_waits) {
    return Warning("what was measured waits until no rank is attached",
                   Reload(facts));
  }
  const int known = daemon.links_configured + daemon.links_measured;
  if (known > 0) {
    return Ok(fmt::format(
        "{} of {} have a speed: {} by the configuration, {} measured", known,
        daemon.links, daemon.links_configured, daemon.links_measured));
  }
  return Ok(
      "none has a speed: copies wait for nothing, and plans see no limit of "
      "a link",
      AsAdministrator(facts, "bandwidth measure --keep"));
}

Finding CheckMetrics(const Facts& facts) {
  const DaemonFacts& daemon = facts.daemon;
  if (!Reached(facts)) return Ok("not known: no daemon answers");
  if (daemon.http.empty()) return Ok("not served over TCP");
  const auto& listener = facts.http_listener;
  const std::string by =
      listener ? fmt::format("; user {} listens there", *listener) : "";
  const std::string look = fmt::format(
      "sudo ss -ltnp 'sport = {}'", daemon.http.substr(daemon.http.rfind(':')));
  if (!daemon.http_fault.empty()) {
    return Problem(Printable(daemon.http_fault) + by, look);
  }
  if (!listener || !facts.process.user || listener == facts.process.user) {
    return Ok(fmt::format("served at {}{}", daemon.http, by));
  }
  return Problem(fmt::format("what answers at {} is not sluiced, which runs as "
                             "user {}{}",
                             daemon.http, *facts.process.user, by),
                 look);
}

Finding CheckHolders(const Facts& facts) {
  if (!Reached(facts)) return Ok("not known: no daemon answers");
  const auto& holders = facts.daemon.holders;
  if (holders.empty()) return Ok("none is seen to hold any");
  const DaemonFacts::Holder& first = holders.front();
  std::string kill = "sudo kill";
  for (const auto& each : holders) kill += fmt::format(" {}", each.pid);
  return Warning(
      fmt::format("process {} ({}) of user {} holds {}{}", first.pid,
                  Printable(first.command), first.user, FormatBytes(first.held),
                  holders.size() == 1 ? ""
                                      : fmt::format(", and {} more hold some",
                                                    holders.size() - 1)),
      kill);
}

// ---- The machine -----------------------------------------------------------

// A node of eight GPUs needs this many open files: each extent takes a
// descriptor, and a second one that is kept for the next daemon (daemon/quota).
constexpr int64_t kEnoughFiles = 8192;

Finding CheckDriver(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  if (driver.device.empty() && !driver.fault.empty()) {
    return Ok("no NVIDIA GPU here: GPUs are simulated");
  }
  if (!driver.fault.empty()) {
    // A fault of a single GPU ends with a command (DeviceInfo::fault).
    const size_t remedy = driver.fault.rfind(": sudo ");
    return Problem(
        fmt::format("this machine has an NVIDIA GPU ({}), but its driver "
                    "cannot be used: {}",
                    driver.device, driver.fault.substr(0, remedy)),
        remedy != std::string::npos ? driver.fault.substr(remedy + 2)
        : driver.module_loaded ? "sudo nvidia-modprobe -u -c 0 && nvidia-smi"
                               : "sudo modprobe nvidia-uvm");
  }
  if (Reached(facts) && !facts.daemon.gpu_faults.empty()) {
    const std::string& first = facts.daemon.gpu_faults.front();
    const size_t end = first.rfind(": ");
    const size_t more = facts.daemon.gpu_faults.size() - 1;
    return Problem(first.substr(0, end) +
                       (more > 0 ? fmt::format(", and {} more", more) : ""),
                   first.substr(end + 2));
  }
  if (Reached(facts) && IsSimulated(facts.daemon.driver)) {
    return Warning(
        "NVIDIA's driver works, but sluiced simulates its GPUs: it was told "
        "to, or was started before the driver was there",
        facts.unit ? "sudo sed -i 's/^ *driver *= *\"sim\"/driver = "
                     "\"auto\"/' /etc/sluice/sluiced.toml && "
                     "sudo systemctl restart sluiced"
                   : EndAndStart(facts));
  }
  return Ok("NVIDIA's driver works");
}

Finding CheckPersistence(const Facts& facts) {
  const DriverFacts& driver = facts.driver;
  if (driver.device.empty()) return Ok("no NVIDIA GPU here");
  if (!driver.persistence) {
    return Warning("nvidia-smi does not tell whether it is on",
                   "nvidia-smi --query-gpu=persistence_mode --format=csv");
  }
  std::vector<size_t> off;
  for (size_t i = 0; i < driver.persistence->size(); ++i) {
    if (!(*driver.persistence)[i]) off.push_back(i);
  }
  if (off.empty()) return Ok("on");
  return Warning(
      fmt::format("off on GPU {}: the driver unloads from a GPU without users, "
                  "and the next process waits seconds for it",
                  absl::StrJoin(off, ", ")),
      "sudo nvidia-smi -pm 1");
}

// Returns a remark if the limits are not those of the daemon's process.
std::string CgroupOwner(const Facts& facts) {
  if (facts.process.hidden) return "here, as hidepid hides sluiced in /proc: ";
  return facts.process.pid ? "" : "here, where no sluiced is seen: ";
}

Finding CheckLockedMemory(const Facts& facts) {
  if (!facts.process.locked_bytes) return Ok(CgroupOwner(facts) + "unlimited");
  const std::string most = CgroupOwner(facts) + "at most " +
                           FormatBytes(Bytes(*facts.process.locked_bytes));
  if (facts.driver.device.empty()) {
    return Ok(most + "; simulated GPUs need none");
  }
  const std::string said = most + ": host memory beyond may not be pinned";
  if (facts.unit) return Warning(said, kShippedUnit);
  const std::string pid =
      facts.process.pid ? std::to_string(*facts.process.pid) : "$$";
  return Warning(said,
                 fmt::format("sudo prlimit --pid {} --memlock=unlimited", pid));
}

Finding CheckOpenFiles(const Facts& facts) {
  if (!facts.process.open_files) return Ok(CgroupOwner(facts) + "unlimited");
  const int64_t most = *facts.process.open_files;
  // A keeper passes its own limit on to the next daemon.
  const std::string fix =
      facts.unit ? kShippedUnit
      : facts.keeper && facts.process.pid
          ? fmt::format(
                "sudo prlimit --pid $(ps -o ppid= -p {}) "
                "--nofile=65536:65536 && {}",
                *facts.process.pid, Reload(facts))
          : "sudo prlimit --pid $$ --nofile=65536:65536 && " +
                EndAndStart(facts);
  const std::string said =
      fmt::format("{}at most {}", CgroupOwner(facts), most);
  if (facts.unit && most <= facts.unit->store_most) {
    return Problem(fmt::format("{}, but systemd may keep {}: the next daemon "
                               "could not be started with all of them",
                               said, facts.unit->store_most),
                   fix);
  }
  if (most < kEnoughFiles) {
    return Warning(fmt::format("{}: each extent of memory takes one or two, "
                               "so large pools do not fit",
                               said),
                   fix);
  }
  return Ok(said);
}

// The limit in memory.stat may be that of a cgroup that only the host sees, so
// the command only shows it.
std::string RaiseLimit(const std::string& file) {
  const std::string path = ShellWord(file);
  if (file.ends_with("/memory.stat")) {
    return "grep hierarchical_memory_limit " + path;
  }
  const char* const none = file.ends_with("/memory.max") ? "max" : "-1";
  return fmt::format("echo {} | sudo tee {}", none, path);
}

Finding CheckMemoryLimit(const Facts& facts) {
  const auto& limit = facts.process.memory;
  if (!limit) return Ok(CgroupOwner(facts) + "no cgroup limits it");
  const std::string said = fmt::format("{}at most {} ({})", CgroupOwner(facts),
                                       FormatBytes(limit->most), limit->file);
  if (limit->file.find("/sluiced.service/") != std::string::npos) {
    return Warning(said +
                       ": beyond it the kernel kills the one process that "
                       "owns every job's memory",
                   "sudo systemctl set-property sluiced MemoryMax=infinity");
  }
  if (Reached(facts) && facts.daemon.host_pools > limit->most) {
    return Warning(fmt::format("{}, but host memory of {} is to be leased",
                               said, FormatBytes(facts.daemon.host_pools)),
                   RaiseLimit(limit->file));
  }
  return Ok(said);
}

Finding CheckHugePages(const Facts& facts) {
  const MachineFacts& machine = facts.machine;
  if (machine.huge_pages == 0) return Ok("none are set aside");
  return Warning(
      fmt::format("{} of {} are set aside ({}): Sluice's pools cannot use "
                  "them",
                  machine.huge_pages, FormatBytes(machine.huge_page),
                  FormatBytes(machine.huge_page * machine.huge_pages)),
      "sudo sysctl vm.nr_hugepages=0");
}

Finding CheckNuma(const Facts& facts) {
  const std::vector<int> online = ParseNodes(facts.machine.online_nodes);
  const std::vector<int> allowed = ParseNodes(facts.process.memory_nodes);
  if (online.empty() || allowed.empty()) {
    return Ok("the kernel does not tell of nodes");
  }
  if (std::includes(allowed.begin(), allowed.end(), online.begin(),
                    online.end())) {
    return Ok(fmt::format("{} node{}, memory of each may be had", online.size(),
                          online.size() == 1 ? "" : "s"));
  }
  return Warning(
      fmt::format("{}memory of nodes {} only, but the machine has {}",
                  CgroupOwner(facts), facts.process.memory_nodes,
                  facts.machine.online_nodes),
      facts.unit
          ? "sudo systemctl set-property sluiced AllowedMemoryNodes="
          : fmt::format("echo {} | sudo tee /sys/fs/cgroup$(sed s/^0::// "
                        "/proc/{}/cgroup)/cpuset.mems",
                        facts.machine.online_nodes,
                        facts.process.pid ? std::to_string(*facts.process.pid)
                                          : "self"));
}

Finding CheckHostMemory(const Facts& facts) {
  if (!Reached(facts)) return Ok("not known: sluiced does not tell");
  const DaemonFacts& daemon = facts.daemon;
  if (IsSimulated(daemon.driver)) return Ok("simulated");
  if (daemon.host_memory.empty()) return Ok("this sluiced does not tell");
  if (daemon.host_memory_why.empty()) return Ok(daemon.host_memory);
  if (daemon.host_memory_why == device::kToldSo) {
    return Ok(daemon.host_memory + ", " + daemon.host_memory_why);
  }
  return Warning(
      fmt::format("{}, which every rank pins by itself when it leases: {}",
                  daemon.host_memory, daemon.host_memory_why),
      "nvidia-smi --query-gpu=driver_version --format=csv");
}

struct Check {
  const char* what;
  Finding (*look)(const Facts&);
};

constexpr Check kServiceChecks[] = {
    {"daemon", CheckDaemon},
    {"version", CheckVersion},
    {"state", CheckState},
    {"store", CheckStore},
    {"folder", CheckFolder},
    {"session socket", CheckSessionSocket},
    {"admin socket", CheckAdminSocket},
    {"policy file", CheckPolicy},
    {"links", CheckLinks},
    {"metrics", CheckMetrics},
    {"memory without a session", CheckHolders},
};

constexpr Check kMachineChecks[] = {
    {"driver", CheckDriver},
    {"persistence mode", CheckPersistence},
    {"locked memory", CheckLockedMemory},
    {"open files", CheckOpenFiles},
    {"memory limit", CheckMemoryLimit},
    {"huge pages", CheckHugePages},
    {"NUMA", CheckNuma},
    {"host memory", CheckHostMemory},
};

std::vector<Finding> Run(std::initializer_list<std::span<const Check>> lists,
                         const Facts& facts) {
  std::vector<Finding> findings;
  for (const std::span<const Check> checks : lists) {
    for (const Check& check : checks) {
      findings.push_back(check.look(facts));
      findings.back().what = check.what;
      if (facts.user == "root") {  // root needs no sudo, which may be missing
        absl::StrReplaceAll({{"sudo ", ""}}, &findings.back().fix);
      }
    }
  }
  return findings;
}

}  // namespace

std::vector<Finding> Examine(const Facts& facts) {
  return Run({kServiceChecks, kMachineChecks}, facts);
}

std::vector<Finding> ExamineMachine(const Facts& facts) {
  return Run({kMachineChecks}, facts);
}

std::vector<int> ParseNodes(const std::string& list) {
  std::vector<int> nodes;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || last < first ||
        last - first > 4096) {
      return {};
    }
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  return nodes;
}

bool IsWell(const std::vector<Finding>& findings) {
  return std::ranges::count(findings, Health::kProblem, &Finding::health) == 0;
}

std::string RenderDoctor(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& found : findings) {
    text += fmt::format("{:<8} {:<17} {}\n",
                        kHealthNames[static_cast<int>(found.health)],
                        found.what, Printable(found.said));
    if (!found.fix.empty()) text += fmt::format("{:26} $ {}\n", "", found.fix);
  }
  return text;
}

std::string RenderDoctorJson(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& found : findings) {
    list.push_back(
        {{"what", found.what},
         {"ok", found.health != Health::kProblem},
         {"health", kHealthNames[static_cast<int>(found.health)]},
         {"said", found.said},
         {"fix", found.fix.empty() ? json(nullptr) : json(found.fix)}});
  }
  const json all = {{"ok", IsWell(findings)}, {"findings", std::move(list)}};
  return JsonLine(all);
}

}  // namespace sluice::ctl
