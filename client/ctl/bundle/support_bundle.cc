#include "client/ctl/bundle/support_bundle.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/ctl/doctor/checks.h"
#include "client/ctl/status/render.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/output.h"
#include "proto/base/file_text.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"
#include "proto/base/unix_address.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

constexpr char kNever[] =
    R"(Never in it: what is in memory, plans and profiles, environment variables.
Names of users, jobs, hosts and cgroups are in it: read it before you send it.
)";

std::string ItemReason(const Item& item) {
  return Printable(std::string(item.text.status().message()));
}

// Formats "sluice-support-node1-20260102T030405Z".
std::string NameNow() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return fmt::format(
      "sluice-support-{}-{}", host.data(),
      absl::FormatTime("%Y%m%dT%H%M%SZ", absl::Now(), absl::UTCTimeZone()));
}

// Returns an archive member in POSIX's ustar format: a header and the text, in
// blocks of 512 bytes.
std::string TarMember(const std::string& folder, const std::string& name,
                      const std::string& text) {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& field) {
    header.replace(at, field.size(), field);
  };
  put(0, name);
  put(100, "0000600");
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", text.size()));
  put(136, fmt::format("{:011o}", absl::ToUnixSeconds(absl::Now())));
  put(148, "        ");
  put(156, "0");
  put(257, std::string("ustar\00000", 8));
  put(345, folder);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + '\0');
  const std::string padding((512 - text.size() % 512) % 512, '\0');
  return header + text + padding;
}

// Longer lines are cut, because std::regex uses a stack frame per byte.
constexpr size_t kLongestLine = 4096;

struct Rule {
  std::regex pattern;
  const char* kept;

  Rule(const char* text, const char* kept)
      : pattern(text, std::regex::icase | std::regex::optimize), kept(kept) {}
};

const std::array<Rule, 3>& Rules() {
  static const auto* const rules = new std::array<Rule, 3>{{
      // scheme://user:password@host
      {R"((://)[^\s/@"']+@)", "$1(removed)@"},
      {R"(\b(bearer|basic)\s+[-\w.~+/=]{8,})", "$1 (removed)"},
      // key = "value", "key": "value", --key=value, KEY=value, but not counts
      // of tokens. Letters before the key word are not matched, because that
      // would take quadratic time.
      {R"re(((?:passw|passphrase|secret|token(?!s\b)|credential|)re"
       R"re(api_?key|private_?key|auth(?:orization)?(?![a-z])))re"
       R"re([-\w]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;}]+))re",
       "$1(removed)"},
  }};
  return *rules;
}

std::string Clean(std::string_view whole, int& removed) {
  std::string line(whole.substr(0, kLongestLine));
  if (whole.size() > kLongestLine) line += " (cut)";
  for (const Rule& rule : Rules()) {
    const std::sregex_iterator found(line.begin(), line.end(), rule.pattern);
    const auto count = std::distance(found, std::sregex_iterator());
    removed += static_cast<int>(count);
    if (count > 0) line = std::regex_replace(line, rule.pattern, rule.kept);
  }
  return line;
}

using TextOr = absl::StatusOr<std::string>;

constexpr char kUnitsConfig[] = "/etc/sluice/sluiced.toml";
constexpr timeval kPatience = {5, 0};
constexpr size_t kMaxReplyBytes = size_t{64} << 20;

TextOr Events(const TextOr& snapshot) {
  SLUICE_RETURN_IF_ERROR(snapshot.status());
  SeenEvents seen;
  return RenderEventLines(*snapshot, seen, /*as_json=*/true, absl::Now());
}

TextOr FileText(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) {
    return ErrnoStatus(errno, "read " + path);
  }
  return TextOf(path);
}

// Requests `path` from sluiced over its unix socket and returns the body.
TextOr HttpGet(const std::string& socket, const std::string& path) {
  const auto address = UnixAddress(socket);
  if (!address) {
    return absl::InvalidArgumentError(socket +
                                      " is too long for a socket's path");
  }
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "make a unix socket");
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    setsockopt(fd.get(), SOL_SOCKET, option, &kPatience, sizeof(kPatience));
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
              sizeof(*address)) != 0) {
    return ErrnoStatus(errno, "connect to " + socket);
  }
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

// Reads the configuration named by the daemon's command line, else by the unit.
TextOr Config(const Facts& facts) {
  if (facts.process.pid) {
    const auto config = ReadStartedWith(facts.process.command).config;
    if (!config) return absl::NotFoundError("sluiced was started without one");
    if (config->starts_with('/')) return FileText(*config);
    // A user that may not trace the process cannot open this path.
    return FileText(
        fmt::format("/proc/{}/cwd/{}", *facts.process.pid, *config));
  }
  if (std::filesystem::path(facts.session.path).parent_path() != kUnitsFolder) {
    return absl::NotFoundError("no sluiced is seen that would have one");
  }
  return FileText(kUnitsConfig);
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

std::string TextsOf(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) {
    text += fmt::format("{}:\n{}\n", path, TextOf(path));
  }
  return text;
}

std::string ProcessLimits(const Facts& facts) {
  const auto& pid = facts.process.pid;
  const std::string proc = pid ? fmt::format("/proc/{}", *pid) : "/proc/self";
  return (pid ? "" : "no sluiced is seen: these are sluicectl's own\n") +
         TextsOf({proc + "/limits", proc + "/status", proc + "/cgroup"});
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
        "this user may read no line of the journal: run sluicectl as root, or "
        "join the group systemd-journal");
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
  const DaemonFacts& daemon = facts.daemon;
  const TextOr snapshot =
      daemon.reached.ok() ? TextOr(daemon.snapshot) : daemon.reached;
  const char* const whose =
      daemon.of_all_users ? "what the daemon knows of everybody"
      : snapshot.ok()
          ? "what the daemon knows of this user, who may not open admin.sock"
          : "what the daemon knows";
  const std::string http =
      std::filesystem::path(sockets.admin).replace_filename("http.sock");
  std::vector<Item> items = {
      {"status.json", whose, snapshot},
      {"status.txt", "the same for people",
       snapshot.ok() ? RenderStatus(*snapshot) : snapshot.status()},
      {"events.jsonl", "the latest events", Events(snapshot)},
      {"metrics.txt", "/metrics, with the series of jobs",
       HttpGet(http, "/metrics")},
      {"doctor.txt", "sluicectl doctor", RenderDoctor(findings)},
      {"doctor.json", "the same for programs", RenderDoctorJson(findings)},
      {"versions.txt", "of sluice, the kernel, the system, the driver",
       Versions(facts)},
      {"limits.txt", "of the daemon's process", ProcessLimits(facts)},
      {"machine.txt", "memory and load",
       TextsOf({"/proc/meminfo", "/proc/loadavg", "/proc/pressure/memory",
                "/sys/devices/system/node/online"})},
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

std::string RenderContents(const std::vector<Item>& items) {
  std::string in, out;
  for (const Item& item : items) {
    if (item.text.ok()) {
      in += fmt::format("  {:<14} {}\n", item.name, item.what);
    } else {
      out += fmt::format("  {:<14} {}: {}\n", item.name, item.what,
                         ItemReason(item));
    }
  }
  return "In it:\n" + in + (out.empty() ? "" : "Left out:\n" + out) + kNever;
}

std::string RenderBundleJson(const std::string& file, size_t bytes,
                             const std::vector<Item>& items) {
  json contents = json::array(), left_out = json::array();
  for (const Item& item : items) {
    json entry = {{"name", item.name}, {"what", item.what}};
    if (!item.text.ok()) entry["why"] = ItemReason(item);
    (item.text.ok() ? contents : left_out).push_back(std::move(entry));
  }
  const json all = {{"file", file},
                    {"bytes", bytes},
                    {"contents", std::move(contents)},
                    {"left_out", std::move(left_out)}};
  return JsonLine(all);
}

absl::StatusOr<std::string> MakeSupportBundle(const SocketPaths& sockets,
                                              const BundleOptions& options) {
  const std::string name = NameNow();
  const std::string out = options.out.empty() ? name + ".tar.gz" : options.out;
  SLUICE_RETURN_IF_ERROR(CheckOutput(out));
  const std::vector<Item> items = Collect(sockets, options.journal_lines);
  const std::string contents = RenderContents(items);
  NamedTexts files = {{"contents.txt", contents}};
  for (const Item& item : items) {
    if (item.text.ok()) files.emplace_back(item.name, *item.text);
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string archive, MakeTarGz(name, files));
  umask(077);
  SLUICE_RETURN_IF_ERROR(WriteOutput(out, archive));
  if (out == "-") return "";
  if (options.json) return RenderBundleJson(out, archive.size(), items);
  return fmt::format("{}: {}\n{}", out,
                     FormatBytes(Bytes(static_cast<int64_t>(archive.size()))),
                     contents);
}

absl::StatusOr<std::string> MakeTarGz(const std::string& name,
                                      const NamedTexts& files) {
  std::string tar;
  for (const auto& [file, text] : files) tar += TarMember(name, file, text);
  tar += std::string(1024, '\0');
  return OutputOf({"gzip", "-c"}, {.patience = absl::Minutes(2), .input = tar});
}

WithoutSecrets RemoveSecrets(const std::string& text) {
  WithoutSecrets result;
  bool in_pem = false;
  std::vector<std::string> kept;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    if (!in_pem && absl::StrContains(line, "-----BEGIN ")) {
      in_pem = true;
      ++result.removed;
      kept.emplace_back("(removed)");
    }
    if (!in_pem) {
      kept.push_back(Clean(line, result.removed));
    } else if (absl::StrContains(line, "-----END ")) {
      in_pem = false;
    }
  }
  result.text = absl::StrJoin(kept, "\n");
  return result;
}

}  // namespace sluice::ctl
