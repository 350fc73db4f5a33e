// Checks of the daemon, its files and its keeper.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/facts.h"
#include "proto/base/text.h"
#include "proto/wire.h"

namespace sluice::ctl {
namespace {

using Seen = FileFacts::Seen;

std::string FolderOf(const Facts& facts) {
  return std::filesystem::path(facts.admin.path).parent_path().string();
}

// The daemon's arguments for a keeper's command line; the keeper adds the
// folder.
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

// Installs package files, because there is no package archive.
std::string Upgrade(const Facts& facts) {
  if (facts.unit || facts.programs.empty()) {
    return "sudo apt install ./sluice-daemon_*.deb ./sluicectl_*.deb";
  }
  return facts.keeper ? Reload(facts) : EndAndStart(facts);
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

std::string AsAdministrator(const Facts& facts, const std::string& command) {
  std::string words = facts.admin.usable ? "" : "sudo ";
  words += ShellWord(facts.programs + "sluicectl");
  if (FolderOf(facts) != kUnitsFolder) {
    words += " --socket " + ShellWord(facts.session.path) + " --admin-socket " +
             ShellWord(facts.admin.path);
  }
  return words + " " + command;
}

// FileDescriptorStoreMax= cannot be set while the unit runs.
std::string LargerStore(int64_t most) {
  return fmt::format(
      "sudo mkdir -p /etc/systemd/system/sluiced.service.d && printf "
      "'[Service]\\nFileDescriptorStoreMax={0}\\nEnvironment=FDSTORE={0}\\n"
      "LimitNOFILE={1}\\n' | "
      "sudo tee /etc/systemd/system/sluiced.service.d/store.conf && sudo "
      "systemctl daemon-reload && sudo systemctl restart sluiced",
      most, std::max<int64_t>(65536, 4 * most));
}

// "" if this user already may connect to the session socket.
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
      // Frozen, or no protocol version in common.
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
      // The keeper then starts another one.
      return Problem(
          why, facts.process.pid
                   ? fmt::format("{}kill {}", Sudo(facts), *facts.process.pid)
                   : "");
  }
}

Finding CheckVersion(const Facts& facts) {
  if (!Reached(facts)) {
    return Ok("sluicectl " + facts.version + "; no daemon told its own");
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
      "nobody keeps what sluiced has: sessions end when it does, also now by "
      "this",
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

}  // namespace

std::span<const Check> ServiceChecks() { return kServiceChecks; }

std::string Start(const Facts& facts) {
  return facts.unit
             ? "sudo systemctl restart sluiced"
             : AsOwner(facts) + ShellWord(facts.programs + "sluiced-keeper") +
                   " --runtime-dir " + ShellWord(FolderOf(facts)) +
                   ItsArguments(facts.process);
}

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

}  // namespace sluice::ctl
