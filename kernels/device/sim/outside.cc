#include "kernels/device/sim/outside.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "kernels/device/sim/memory_name.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

// Does nothing if the folder cannot be read.
void ForEachIn(const std::string& path, auto use) {
  const std::unique_ptr<DIR, CloseFolder> folder(opendir(path.c_str()));
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.') use(std::string(entry->d_name));
  }
}

void ForEachProcess(auto use) {
  ForEachIn("/proc", [&](const std::string& name) {
    int pid = 0;
    if (absl::SimpleAtoi(name, &pid)) use(pid, "/proc/" + name);
  });
}

// Returns the file's text, or "" if it cannot be read.
std::string ReadAll(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd) return text;
  std::array<char, 1 << 16> part;
  for (ssize_t n; (n = read(fd.get(), part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<size_t>(n));
  }
  return text;
}

// Returns the real user of `process` (/proc/PID). The owner of that folder
// would be root for a process that has changed its user.
uid_t UserOf(const std::string& process) {
  const std::string status = ReadAll(process + "/status");
  uid_t user = 0;
  const size_t at = status.find("\nUid:\t");
  if (at != status.npos) std::sscanf(&status[at], "\nUid: %u", &user);
  return user;
}

std::optional<struct stat> StatPath(const std::string& path) {
  struct stat result;
  if (stat(path.c_str(), &result) != 0) return std::nullopt;
  return result;
}

// Returns the device number of the file system of memfds. A user can give a
// memfd's name to a file of root's, but cannot move it to this file system.
dev_t MemfdDevice() {
  const UniqueFd fd(memfd_create("sluice-probe", MFD_CLOEXEC));
  struct stat status = {};
  if (fd) fstat(fd.get(), &status);
  return status.st_dev;
}

// Returns whether `thread` shares its descriptor table with none of `others`,
// and then adds `thread`, so that no table with many descriptors is read twice.
bool HasNewTable(pid_t thread, std::vector<pid_t>& others) {
  for (const pid_t other : others) {
    // 0 means the same table. If kcmp fails, a table may be searched twice.
    if (syscall(SYS_kcmp, thread, other, KCMP_FILES, 0, 0) == 0) return false;
  }
  others.push_back(thread);
  return true;
}

class Search {
 public:
  Search(const std::string& node, const Own& own) : node_(node), own_(own) {}

  // Searches all threads, because they can have separate descriptor tables. If
  // the first thread has ended, it shows no mappings, but the other threads do.
  void AddProcess(const std::string& process) {
    bool mappings_seen = false;
    std::vector<pid_t> looked_at;  // one thread per descriptor table
    ForEachIn(process + "/task", [&](const std::string& thread) {
      const std::string path = process + "/task/" + thread;
      pid_t id = 0;
      if (absl::SimpleAtoi(thread, &id) && HasNewTable(id, looked_at)) {
        ForEachIn(path + "/fd", [&](const std::string& fd) {
          AddDescriptor(path + "/fd/" + fd);
        });
      }
      if (mappings_seen) return;
      const std::string maps = ReadAll(path + "/maps");
      mappings_seen = !maps.empty();
      AddMappings(process, maps);
    });
  }

  std::map<Placement, Bytes> Sums() const {
    std::map<Placement, Bytes> sums;
    for (const auto& [inode, name] : found_) {
      if (!own_.adopted.contains(inode)) sums[name.where] += name.size;
    }
    return sums;
  }

 private:
  // Returns whether another driver made this memory of this node.
  bool IsWanted(const std::optional<MemoryName>& name) const {
    return name && name->node == node_ && name->maker != own_.maker;
  }

  bool IsOurs(const struct stat& file) const {
    return file.st_dev == device_ &&
           (file.st_uid == own_uid_ || file.st_uid == 0);
  }

  void AddDescriptor(const std::string& path) {
    const auto name = ReadLinkedName(path);
    if (!IsWanted(name)) return;
    const auto file = StatPath(path);
    if (file && IsOurs(*file)) found_.insert({file->st_ino, *name});
  }

  // A line is "7f00-7f10 rw-s 00000000 00:01 1234      /memfd:… (deleted)".
  void AddMappings(const std::string& process, absl::string_view maps) {
    for (const absl::string_view line : absl::StrSplit(maps, '\n')) {
      const size_t path = line.find("/memfd:");
      if (path == line.npos) continue;
      const absl::string_view shown = line.substr(path);
      const auto name = ReadShownName({shown.data(), shown.size()});
      const std::vector<absl::string_view> fields =
          absl::StrSplit(line, absl::MaxSplits(' ', 5));
      ino_t inode = 0;
      if (!IsWanted(name) || fields.size() != 6 ||
          !absl::SimpleAtoi(fields[4], &inode) || found_.contains(inode)) {
        continue;
      }
      const auto file =
          StatPath(process + "/map_files/" + std::string(fields[0]));
      if (file ? IsOurs(*file) : IsOwnProcess(process)) {
        found_.insert({inode, *name});
      }
    }
  }

  bool IsOwnProcess(const std::string& process) const {
    const auto folder = StatPath(process);
    return folder && folder->st_uid == own_uid_;
  }

  const std::string node_;
  const Own& own_;
  const uid_t own_uid_ = geteuid();
  const dev_t device_ = MemfdDevice();
  std::map<ino_t, MemoryName> found_;
};

}  // namespace

std::map<Placement, Bytes> FindOutside(const std::string& node,
                                       const Own& own) {
  Search search(node, own);
  ForEachProcess(
      [&](pid_t, const std::string& path) { search.AddProcess(path); });
  return search.Sums();
}

absl::StatusOr<std::vector<SimHolder>> FindSimHolders(
    const std::string& directory) {
  SLUICE_ASSIGN_OR_RETURN(const std::string node, NodeName(directory));
  const Own nothing;
  std::vector<SimHolder> holders;
  ForEachProcess([&](pid_t pid, const std::string& path) {
    if (pid == getpid()) return;
    Search search(node, nothing);
    search.AddProcess(path);
    auto held = search.Sums();
    if (held.empty()) return;
    const std::string comm = ReadAll(path + "/comm");
    holders.push_back(
        {pid, UserOf(path), comm.substr(0, comm.find('\n')), std::move(held)});
  });
  return holders;
}

}  // namespace sluice::device
