#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/time/clock.h"
#include "client/ctl/admin/admin.h"
#include "client/ctl/bundle/support_bundle.h"
#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/facts.h"
#include "client/ctl/status/render.h"
#include "client/session/session.h"
#include "proto/base/file_text.h"
#include "proto/base/run_program.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/unix_address.h"
#include "proto/cli/cli.h"

namespace sluice::ctl {
namespace {

using TextOr = absl::StatusOr<std::string>;

constexpr char kUnitsConfig[] = "/etc/sluice/sluiced.toml";
constexpr timeval kPatience = {5, 0};
constexpr size_t kMaxReplyBytes = size_t{64} << 20;

struct StatusSnapshot {
  TextOr json;
  std::string what = "what the daemon knows";
};
// Asks for all users' snapshot, else this user's own. Does not ask a daemon
// that did not answer the doctor (`reached`).
StatusSnapshot AskDaemon(const SocketPaths& sockets,
                         const absl::Status& reached) {
  if (!reached.ok()) return {reached};
  if (TextOr all = ReadStatus(sockets.admin); all.ok()) {
    return {std::move(all), "what the daemon knows of everybody"};
  }
  auto own = client::QueryNode(sockets.session);
  return {own.ok() ? TextOr(std::move(own->json)) : own.status(),
          "what the daemon knows of this user, who may not open admin.sock"};
}

TextOr Events(const TextOr& snapshot) {
  SLUICE_RETURN_IF_ERROR(snapshot.status());
  SLUICE_ASSIGN_OR_RETURN(
      auto lines,
      RenderEventLines(*snapshot, {}, /*as_json=*/true, absl::Now()));
  return std::move(lines.text);
}

TextOr FileText(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) {
    return ErrnoStatus(errno, "read " + path);
  }
  return TextOf(path);
}

absl::StatusOr<UniqueFd> ConnectStream(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address) {
    return absl::InvalidArgumentError(path + " is too long for a socket");
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "make a unix socket");
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    setsockopt(fd.get(), SOL_SOCKET, option, &kPatience, sizeof(kPatience));
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
              sizeof(*address)) != 0) {
    return ErrnoStatus(errno, "connect to " + path);
  }
  return fd;
}

// Requests `path` from sluiced over its unix socket and returns the body.
TextOr HttpGet(const std::string& socket, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const UniqueFd fd, ConnectStream(socket));
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return ErrnoStatus(errno, "ask " + socket);
  }
  std::string answer;  // ends when the connection does
  std::array<char, 65536> piece;
  while (true) {
    const ssize_t got = recv(fd.get(), piece.data(), piece.size(), 0);
    if (got < 0) return ErrnoStatus(errno, "read from " + socket);
    if (got == 0 || answer.size() > kMaxReplyBytes) break;
    answer.append(piece.data(), static_cast<size_t>(got));
  }
  const size_t body = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.1 200") || body == std::string::npos) {
    return absl::UnavailableError(fmt::format(
        "{} answered: {}", socket, answer.substr(0, answer.find('\r'))));
  }
  return answer.substr(body + 4);
}

// Returns a path to the file that process `pid` means by `path`. A user that
// may not trace the process cannot open it.
std::string SeenBy(int64_t pid, const std::string& path) {
  if (path.starts_with('/')) return path;
  return fmt::format("/proc/{}/cwd/{}", pid, path);
}

// By the daemon's command line, which every user may see.
TextOr ConfigPath(const Facts& facts) {
  if (facts.process.pid) {
    const StartedWith with = ReadStartedWith(facts.process.command);
    if (with.config) return SeenBy(*facts.process.pid, *with.config);
    return absl::NotFoundError("sluiced was started without one");
  }
  if (std::filesystem::path(facts.session.path).parent_path() != kUnitsFolder) {
    return absl::NotFoundError("no sluiced is seen that would have one");
  }
  return std::string(kUnitsConfig);
}

TextOr Config(const Facts& facts) {
  SLUICE_ASSIGN_OR_RETURN(const std::string path, ConfigPath(facts));
  return FileText(path);
}

std::string Versions(const Facts& facts) {
  utsname kernel = {};
  uname(&kernel);
  std::string text = fmt::format(
      "sluicectl {}\nsluiced {}\nkernel {} {} {}\n", facts.version,
      facts.daemon.reached.ok() ? facts.daemon.version : "not known",
      kernel.sysname, kernel.release, kernel.machine);
  for (const char* path : {"/etc/os-release", "/proc/driver/nvidia/version"}) {
    if (const std::string told = TextOf(path); !told.empty()) {
      text += fmt::format("\n{}:\n{}", path, told);
    }
  }
  return text;
}

std::string ProcessLimits(const Facts& facts) {
  const std::string name =
      facts.process.pid ? std::to_string(*facts.process.pid) : "self";
  std::string text = facts.process.pid
                         ? ""
                         : "no sluiced is seen: these are sluicectl's own\n";
  for (const char* file : {"limits", "status", "cgroup"}) {
    const std::string path = fmt::format("/proc/{}/{}", name, file);
    text += fmt::format("{}:\n{}\n", path, TextOf(path));
  }
  return text;
}

std::string Machine() {
  std::string text;
  for (const char* path :
       {"/proc/meminfo", "/proc/loadavg", "/proc/pressure/memory",
        "/sys/devices/system/node/online"}) {
    text += fmt::format("{}:\n{}\n", path, TextOf(path));
  }
  return text;
}

TextOr Journal(const Facts& facts, int64_t lines) {
  if (!facts.unit) {
    return absl::NotFoundError("sluiced is no unit of systemd's here");
  }
  SLUICE_ASSIGN_OR_RETURN(
      std::string text,
      OutputOf({"journalctl", "--unit", "sluiced", "--no-pager", "--output",
                "short-iso-precise", "--lines", std::to_string(lines)}));
  if (text.empty() || text.starts_with("-- No entries --")) {
    return absl::PermissionDeniedError(
        "this user may read no line of it: run it as root, or join the group "
        "systemd-journal");
  }
  return text;
}

Item Cleaned(Item item) {
  if (!item.text.ok()) return item;
  WithoutSecrets clean = RemoveSecrets(*item.text);
  if (clean.removed > 0) {
    item.what += fmt::format(" ({} secret{} removed)", clean.removed,
                             clean.removed == 1 ? "" : "s");
  }
  item.text = std::move(clean.text);
  return item;
}

}  // namespace

std::vector<Item> Collect(const SocketPaths& sockets, int64_t journal_lines) {
  const Facts facts = ReadFacts(sockets);
  const std::vector<Finding> findings = Examine(facts);
  const StatusSnapshot status = AskDaemon(sockets, facts.daemon.reached);
  const std::string http =
      std::filesystem::path(sockets.admin).replace_filename("http.sock");
  std::vector<Item> items = {
      {"status.json", status.what, status.json},
      {"status.txt", "the same for people",
       status.json.ok() ? RenderStatus(*status.json)
                        : TextOr(status.json.status())},
      {"events.jsonl", "what happened last", Events(status.json)},
      {"metrics.txt", "/metrics, with the series of jobs",
       HttpGet(http, "/metrics")},
      {"doctor.txt", "sluicectl doctor", RenderDoctor(findings)},
      {"doctor.json", "the same for programs", RenderDoctorJson(findings)},
      {"versions.txt", "of sluice, the kernel, the system, the driver",
       Versions(facts)},
      {"limits.txt", "of the daemon's process", ProcessLimits(facts)},
      {"machine.txt", "memory and load", Machine()},
      Cleaned({"config.toml", "the daemon's configuration", Config(facts)}),
      {"policy.json", "what administrators set", FileText(facts.policy.path)},
      Cleaned({"journal.txt", "the unit's journal",
               Journal(facts, journal_lines)})};
  if (!facts.driver.device.empty()) {
    items.push_back(
        {"nvidia.txt", "nvidia-smi -q", OutputOf({"nvidia-smi", "-q"})});
  }
  return items;
}

}  // namespace sluice::ctl
