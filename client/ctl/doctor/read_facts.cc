#include "client/ctl/doctor/read_facts.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_split.h"
#include "client/ctl/admin/admin.h"
#include "client/ctl/doctor/told_facts.h"
#include "client/session/query.h"
#include "kernels/device/cuda/nvidia.h"
#include "kernels/device/driver.h"
#include "proto/base/file_text.h"
#include "proto/base/run_program.h"
#include "proto/cli/cli.h"

namespace sluice::ctl {
namespace {

constexpr char kUnitsPolicy[] = "/var/lib/sluice";

std::string ToldBy(const std::vector<std::string>& words) {
  return OutputOf(words).value_or("");
}

std::string NameOf(uid_t user) {
  const passwd* const entry = getpwuid(user);
  return entry != nullptr ? entry->pw_name : std::to_string(user);
}

std::string GroupName(gid_t group) {
  const ::group* const entry = getgrgid(group);
  return entry != nullptr ? entry->gr_name : std::to_string(group);
}

FileFacts ReadFile(const std::string& path) {
  FileFacts facts;
  facts.path = path;
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

// By the group database; this process may not have that group yet.
bool Joins(const std::string& user, const std::string& group) {
  const ::group* const entry = getgrnam(group.c_str());
  if (entry == nullptr) return false;
  for (char** member = entry->gr_mem; *member != nullptr; ++member) {
    if (user == *member) return true;
  }
  return false;
}

// An administrator's snapshot lists the processes of every user.
DaemonFacts ReadDaemon(const SocketPaths& sockets) {
  const auto fault = [](const absl::Status& why) {
    DaemonFacts facts;
    facts.reached = why;
    return facts;
  };
  const auto status = client::QueryNode(sockets.session);
  if (!status.ok()) return fault(status.status());
  const auto all = ReadStatus(sockets.admin);
  const auto told = ToldDaemon(all.ok() ? *all : status->json);
  return told.ok() ? *told : fault(told.status());
}

std::vector<std::string> ToldCommand(const std::string& cmdline) {
  std::vector<std::string> words = absl::StrSplit(cmdline, '\0');
  words.pop_back();
  return words;
}

ProcessFacts ReadProcess(const std::string& folder) {
  ProcessFacts facts;
  if (const int pid = FindHolder(folder + "/lock"); pid > 0) facts.pid = pid;
  std::string name = facts.pid ? std::to_string(*facts.pid) : "self";
  facts.hidden = access(("/proc/" + name).c_str(), F_OK) != 0;
  if (facts.hidden) name = "self";
  const std::string proc = "/proc/" + name;
  if (facts.pid && !facts.hidden) {
    facts.command = ToldCommand(TextOf(proc + "/cmdline"));
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
      ToldBy({"systemctl", "show", "sluiced", "--property",
              "LoadState,ActiveState,StatusText,FileDescriptorStoreMax,"
              "NFileDescriptorStore"}));
}

DriverFacts ReadDriver() {
  DriverFacts facts;
  facts.device = device::FindNvidiaDevice();
  facts.module_loaded = std::filesystem::exists("/proc/driver/nvidia");
  const auto driver = device::OpenCudaDriver();
  if (!driver.ok()) facts.fault = std::string(driver.status().message());
  if (!facts.device.empty()) {
    facts.persistence =
        ToldPersistence(ToldBy({"nvidia-smi", "--query-gpu=persistence_mode",
                                "--format=csv,noheader"}));
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

// The daemon checks more than JSON when it starts.
std::string PolicyFault(const FileFacts& file) {
  if (access(file.path.c_str(), R_OK) != 0) return "";
  const bool whole = nlohmann::json::accept(TextOf(file.path));
  return whole ? "" : "it is damaged";
}

}  // namespace

int FindHolder(const std::string& lock) {
  struct stat info;
  if (stat(lock.c_str(), &info) != 0) return 0;
  return ToldHolder(TextOf("/proc/locks"), info.st_dev, info.st_ino);
}

Facts ReadFacts(const SocketPaths& sockets) {
  Facts facts;
  // session.sock may be elsewhere (--session-dir).
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
  // The keeper may be in another pid namespace.
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
  facts.policy_fault = PolicyFault(facts.policy);
  return facts;
}

}  // namespace sluice::ctl
