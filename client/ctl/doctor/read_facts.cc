#include <arpa/inet.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/ctl/admin/admin.h"
#include "client/ctl/doctor/facts.h"
#include "client/session/session.h"
#include "kernels/device/cuda/nvidia.h"
#include "kernels/device/driver.h"
#include "proto/base/file_text.h"
#include "proto/base/spawn.h"
#include "proto/cli/cli.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

constexpr char kUnitsPolicy[] = "/var/lib/sluice";

std::string NameOf(uid_t user) {
  const passwd* const entry = getpwuid(user);
  return entry != nullptr ? entry->pw_name : std::to_string(user);
}

std::string GroupName(gid_t group) {
  const ::group* const entry = getgrgid(group);
  return entry != nullptr ? entry->gr_name : std::to_string(group);
}

FileFacts ReadFile(const std::string& path) {
  FileFacts facts{.path = path};
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    facts.seen =
        errno == EACCES ? FileFacts::Seen::kHidden : FileFacts::Seen::kMissing;
    return facts;
  }
  facts.seen = FileFacts::Seen::kThere;
  facts.owner = NameOf(info.st_uid);
  facts.group = GroupName(info.st_gid);
  facts.mode = info.st_mode;
  facts.usable = access(path.c_str(), R_OK | W_OK) == 0;
  return facts;
}

std::string ProgramsFolder() {
  std::error_code hidden;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", hidden);
  const std::string folder = program.parent_path().string() + "/";
  return folder == "/usr/bin/" || folder == "/usr/local/bin/" ? "" : folder;
}

// Asks the group database, because this process may not have the group yet.
bool Joins(const std::string& user, const std::string& group) {
  const ::group* const entry = getgrnam(group.c_str());
  if (entry == nullptr) return false;
  for (char** member = entry->gr_mem; *member != nullptr; ++member) {
    if (user == *member) return true;
  }
  return false;
}

// Prefers the administrators' snapshot, which lists the processes of all users.
DaemonFacts ReadDaemon(const SocketPaths& sockets) {
  const auto status = client::QueryNode(sockets.session);
  if (!status.ok()) return {.reached = status.status()};
  const auto all = ReadStatus(sockets.admin);
  const std::string& snapshot = all.ok() ? *all : status->json;
  auto told = ToldDaemon(snapshot);
  if (!told.ok()) return {.reached = told.status()};
  told->snapshot = snapshot;
  told->of_all_users = all.ok();
  return *std::move(told);
}

ProcessFacts ReadProcess(const std::string& folder) {
  ProcessFacts facts;
  if (const int pid = FindHolder(folder + "/lock"); pid > 0) facts.pid = pid;
  std::string name = facts.pid ? std::to_string(*facts.pid) : "self";
  facts.hidden = access(("/proc/" + name).c_str(), F_OK) != 0;
  if (facts.hidden) name = "self";
  const std::string proc = "/proc/" + name;
  if (facts.pid && !facts.hidden) {
    facts.command = absl::StrSplit(TextOf(proc + "/cmdline"), '\0');
    facts.command.pop_back();  // the last word ends with a zero byte, too
    std::error_code hidden;
    facts.folder = std::filesystem::read_symlink(proc + "/cwd", hidden);
  }
  const std::string limits = TextOf(proc + "/limits");
  const std::string status = TextOf(proc + "/status");
  facts.locked_bytes = ToldLimit(limits, "Max locked memory", LimitKind::kSoft);
  facts.open_files = ToldLimit(limits, "Max open files", LimitKind::kHard);
  facts.memory = CgroupMemoryLimit(name);
  facts.memory_nodes = ToldValue(status, "Mems_allowed_list");
  if (uid_t user = 0; std::istringstream(ToldValue(status, "Uid")) >> user) {
    facts.user = user;
  }
  return facts;
}

std::optional<UnitFacts> ReadUnit(const std::string& folder) {
  if (folder != kUnitsFolder ||
      !std::filesystem::exists("/run/systemd/system")) {
    return std::nullopt;
  }
  return ToldUnit(
      OutputOf({"systemctl", "show", "sluiced", "--property",
                "LoadState,ActiveState,StatusText,FileDescriptorStoreMax,"
                "NFileDescriptorStore"})
          .value_or(""));
}

DriverFacts ReadDriver() {
  DriverFacts facts;
  facts.device = device::FindNvidiaDevice();
  facts.module_loaded = std::filesystem::exists("/proc/driver/nvidia");
  const auto driver = device::OpenCudaDriver();
  if (!driver.ok()) facts.fault = std::string(driver.status().message());
  if (!facts.device.empty()) {
    facts.persistence =
        ToldPersistence(OutputOf({"nvidia-smi", "--query-gpu=persistence_mode",
                                  "--format=csv,noheader"})
                            .value_or(""));
  }
  return facts;
}

MachineFacts ReadMachine() {
  MachineFacts facts;
  const std::string memory = TextOf("/proc/meminfo");
  std::istringstream(ToldValue(memory, "HugePages_Total")) >> facts.huge_pages;
  int64_t kib = 0;
  std::istringstream(ToldValue(memory, "Hugepagesize")) >> kib;
  facts.huge_page = KiB(kib);
  std::istringstream(TextOf("/sys/devices/system/node/online")) >>
      facts.online_nodes;
  return facts;
}

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

std::vector<std::string> SplitWords(const std::string& line) {
  return absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
}

std::optional<int64_t> ParsedNumber(const std::string& text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? std::optional(number) : std::nullopt;
}

// Returns the value of `flag` if words[i] is that flag: the text after "=", or
// the next word, to which `i` then advances.
std::optional<std::string> ValueOf(const std::string& flag,
                                   const std::vector<std::string>& words,
                                   size_t& i) {
  if (words[i].starts_with(flag + "=")) {
    return words[i].substr(flag.size() + 1);
  }
  if (words[i] != flag || i + 1 == words.size()) return std::nullopt;
  return words[++i];
}

}  // namespace

int FindHolder(const std::string& lock) {
  struct stat info;
  if (stat(lock.c_str(), &info) != 0) return 0;
  return ToldHolder(TextOf("/proc/locks"), info.st_dev, info.st_ino);
}

Facts ReadFacts(const SocketPaths& sockets) {
  Facts facts;
  // Not the folder of session.sock, which --session-dir may move.
  const std::string folder =
      std::filesystem::path(sockets.admin).parent_path().string();
  facts.version = cli::Version();
  facts.user = NameOf(getuid());
  facts.programs = ProgramsFolder();
  facts.makes_folder =
      access(std::filesystem::path(folder).parent_path().c_str(), W_OK) == 0;
  facts.daemon = ReadDaemon(sockets);
  facts.process = ReadProcess(folder);
  const std::string net =
      fmt::format("/proc/{}/net/", facts.process.pid.value_or(getpid()));
  facts.http_listener = ToldListener(TextOf(net + "tcp") + TextOf(net + "tcp6"),
                                     facts.daemon.http);
  facts.unit = ReadUnit(folder);
  // A keeper in another pid namespace is visible only by its socket.
  facts.keeper = FindHolder(folder + "/keeper.lock") > 0 ||
                 (!facts.process.pid &&
                  access((folder + "/keeper.sock").c_str(), F_OK) == 0);
  facts.driver = ReadDriver();
  facts.machine = ReadMachine();
  facts.folder =
      ReadFile(std::filesystem::path(sockets.session).parent_path().string());
  facts.session = ReadFile(sockets.session);
  facts.admin = ReadFile(sockets.admin);
  facts.joins_admin_group = Joins(facts.user, facts.admin.group);
  facts.policy =
      ReadFile((folder == kUnitsFolder ? kUnitsPolicy : folder) + "/policy");
  // Checks only that the file is JSON. The daemon checks more when it starts.
  if (access(facts.policy.path.c_str(), R_OK) == 0 &&
      !json::accept(TextOf(facts.policy.path))) {
    facts.policy_fault = "it is damaged";
  }
  return facts;
}

std::optional<int64_t> ToldLimit(const std::string& limits,
                                 const std::string& name, LimitKind kind) {
  for (const std::string& line : Lines(limits)) {
    if (!line.starts_with(name)) continue;
    const auto columns = SplitWords(line.substr(name.size()));
    const size_t column = kind == LimitKind::kSoft ? 0 : 1;
    if (columns.size() > column) return ParsedNumber(columns[column]);
  }
  return std::nullopt;
}

std::string ToldValue(const std::string& text, const std::string& key,
                      char separator) {
  for (const std::string& line : Lines(text)) {
    if (!line.starts_with(key + separator)) continue;
    const auto value = absl::StripAsciiWhitespace(
        absl::string_view(line).substr(key.size() + 1));
    return {value.data(), value.size()};
  }
  return "";
}

int ToldHolder(const std::string& locks, uint64_t device, uint64_t inode) {
  const std::string file =
      fmt::format("{:02x}:{:02x}:{}", major(device), minor(device), inode);
  for (const std::string& line : Lines(locks)) {
    // "1: FLOCK  ADVISORY  WRITE 4242 00:1a:99 0 EOF"
    const auto words = SplitWords(line);
    if (words.size() < 6 || words[5] != file) continue;
    if (const auto pid = ParsedNumber(words[4]); pid && *pid > 0) {
      return static_cast<int>(*pid);
    }
  }
  return 0;
}

std::optional<uid_t> ToldListener(const std::string& sockets,
                                  const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos) return std::nullopt;
  const auto number = ParsedNumber(address.substr(colon + 1));
  const std::string port = fmt::format(":{:04X}", number.value_or(0));
  in_addr ip = {};
  const bool known =
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &ip) == 1;
  const std::string exact = fmt::format("{:08X}{}", ip.s_addr, port);
  std::optional<uid_t> found;
  for (const std::string& line : Lines(sockets)) {
    // "0: 0100007F:24DB 00000000:0000 0A 00000000:00000000 00:0 0 1001 …"
    const auto words = SplitWords(line);
    constexpr const char* kListens = "0A";
    if (words.size() < 8 || words[3] != kListens || !words[1].ends_with(port)) {
      continue;
    }
    const auto user = ParsedNumber(words[7]);
    if (user && (!found || (known && words[1] == exact))) {
      found = static_cast<uid_t>(*user);
    }
  }
  return found;
}

std::optional<UnitFacts> ToldUnit(const std::string& shown) {
  if (ToldValue(shown, "LoadState", '=') != "loaded") return std::nullopt;
  const auto count = [&](const char* key) {
    return ParsedNumber(ToldValue(shown, key, '=')).value_or(0);
  };
  return UnitFacts{.active = ToldValue(shown, "ActiveState", '=') == "active",
                   .status = ToldValue(shown, "StatusText", '='),
                   .store_most = count("FileDescriptorStoreMax"),
                   .stored = count("NFileDescriptorStore")};
}

std::optional<std::vector<bool>> ToldPersistence(const std::string& csv) {
  std::vector<bool> on;
  for (const std::string& line : Lines(csv)) {
    const auto mode = absl::StripAsciiWhitespace(line);
    if (mode != "Enabled" && mode != "Disabled") return std::nullopt;
    on.push_back(mode == "Enabled");
  }
  if (on.empty()) return std::nullopt;
  return on;
}

absl::StatusOr<DaemonFacts> ToldDaemon(const std::string& snapshot) {
  try {
    const json node = json::parse(snapshot);
    DaemonFacts facts;
    facts.version = node.at("version").get<std::string>();
    facts.driver = node.at("driver").get<std::string>();
    facts.generation = node.at("generation").get<uint64_t>();
    facts.sessions = node.at("sessions").get<int64_t>();
    // Null if the daemon has nothing to state, or is older than the field.
    const auto given = [&](const char* key) { return node.value(key, json()); };
    if (const json drained = given("drained"); !drained.is_null()) {
      facts.drained = {drained.at("by").get<std::string>(),
                       drained.at("reason").get<std::string>()};
    }
    if (const json kind = given("host_memory"); !kind.is_null()) {
      facts.host_memory = kind.at("kind").get<std::string>();
      facts.host_memory_why = kind.at("why").get<std::string>();
    }
    if (const json http = given("http"); !http.is_null()) {
      facts.http = http.at("listen").get<std::string>();
      const json& fault = http.at("fault");
      if (!fault.is_null()) facts.http_fault = fault.get<std::string>();
    }
    for (const json& each : node.value("holders", json::array())) {
      facts.holders.push_back({each.at("pid").get<int>(),
                               each.at("uid").get<uid_t>(),
                               each.at("command").get<std::string>(),
                               Bytes(each.at("gpu_bytes").get<int64_t>() +
                                     each.at("host_bytes").get<int64_t>())});
    }
    for (const json& link : node.value("links", json::array())) {
      const json from = link.value("speed_from", json());
      ++facts.links;
      facts.links_configured += from == "configuration" ? 1 : 0;
      facts.links_measured += from == "measured" ? 1 : 0;
    }
    if (const json measured = given("measured_links"); !measured.is_null()) {
      facts.measured_waits = measured.at("waits").get<bool>();
    }
    for (const json& gpu : node.value("gpus", json::array())) {
      const json fault = gpu.value("fault", json());
      if (!fault.is_null()) facts.gpu_faults.push_back(fault);
    }
    for (const json& host : node.at("host")) {
      facts.host_pools += Bytes(host.at("total_bytes").get<int64_t>());
    }
    return facts;
  } catch (const json::exception& error) {
    return absl::InternalError(fmt::format(
        "the daemon's snapshot is not what this sluicectl knows ({})",
        error.what()));
  }
}

StartedWith ReadStartedWith(const std::vector<std::string>& words) {
  StartedWith with;
  for (size_t i = 1; i < words.size(); ++i) {
    if (auto config = ValueOf("--config", words, i)) {
      with.config = *std::move(config);
    } else if (!ValueOf("--runtime-dir", words, i)) {
      with.others.push_back(words[i]);
    }
  }
  return with;
}

}  // namespace sluice::ctl
