#include "client/train/launch/private_daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/train/launch/launcher.h"
#include "client/train/launch/outcome.h"
#include "client/train/watch/rank_page.h"
#include "proto/base/cgroup.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"
#include "proto/base/whole_io.h"

namespace sluice::train {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(30);

Bytes OrDefault(Bytes size, Bytes otherwise) {
  return RoundUp(size.count() > 0 ? size : otherwise, KiB(64));
}

Bytes GpuMemory(const RunOptions& o) {
  return OrDefault(o.hbm, o.command == Command::kCheck ? GiB(1) : MiB(256));
}

Bytes HostMemory(const RunOptions& o) {
  return OrDefault(o.host, o.command == Command::kCheck ? GiB(4) : GiB(1));
}

std::string LastLine(const std::string& path) {
  std::ifstream in(path);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

// Reads the daemon's stdout until the ready line, end of file or the limit.
absl::Status WaitReady(int fd, pid_t pid, const std::string& log) {
  std::string text;
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (absl::Now() < deadline) {
    pollfd poll_fd{fd, POLLIN, 0};
    if (poll(&poll_fd, 1, 100) <= 0) continue;
    char buffer[512];
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n <= 0) {
      return absl::InternalError(
          fmt::format("the private sluiced did not start: {}", LastLine(log)));
    }
    text.append(buffer, static_cast<size_t>(n));
    if (text.find("sluiced: ready") != std::string::npos) {
      return absl::OkStatus();
    }
  }
  return absl::DeadlineExceededError(
      fmt::format("the private sluiced (pid {}) was not ready after {} s: {}",
                  pid, absl::ToInt64Seconds(kStartTimeout), LastLine(log)));
}

}  // namespace

std::string PrivateConfig(const RunOptions& options) {
  const char* speed = options.command == Command::kCheck ? "0.0" : "2e9";
  std::vector<std::string> links, names;
  for (int i = 0; i < options.ranks; ++i) {
    names.push_back(fmt::format("\"pcie{}\"", i));
    links.push_back(
        fmt::format("{{name = {}, h2d_bytes_per_s = {}, d2h_bytes_per_s = {}}}",
                    names.back(), speed, speed));
  }
  return fmt::format(
      "[device]\ndriver = \"sim\"\n"
      "[sim]\ngpus = {}\ngpu_memory = \"{}\"\nhost_memory = \"{}\"\n"
      "links = [{}]\ngpu_links = [{}]\n"
      "[pools]\nhost_bytes = \"{}\"\nextent_bytes = \"4MiB\"\n"
      "[http]\nlisten = \"\"\n[log]\nlevel = \"warning\"\n",
      options.ranks, ExactBytes(GpuMemory(options)),
      ExactBytes(HostMemory(options)), absl::StrJoin(links, ", "),
      absl::StrJoin(names, ", "), ExactBytes(HostMemory(options)));
}

absl::StatusOr<std::unique_ptr<PrivateDaemon>> PrivateDaemon::Start(
    const RunOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckPrivateSizes(options, MachineMemory()));
  SLUICE_ASSIGN_OR_RETURN(TemporaryFolder folder,
                          TemporaryFolder::Make("sluice"));
  const std::string config = folder.path() + "/config.toml";
  const std::string log = folder.path() + "/log";
  SLUICE_RETURN_IF_ERROR(ReplaceFile(config, PrivateConfig(options)));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  const UniqueFd log_fd(
      open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  SLUICE_ASSIGN_OR_RETURN(
      const pid_t pid,
      Spawn({BinaryFolder() + "/sluice-train", "guard",
             std::to_string(getpid()), BinaryFolder() + "/sluiced", "--config",
             config, "--runtime-dir", folder.path()},
            {.files = {{to.get(), 1}, {log_fd.get(), 2}},
             .own_group = true}));  // Ctrl-C at the terminal does not reach it
  to.Reset();
  std::unique_ptr<PrivateDaemon> daemon(
      new PrivateDaemon(std::move(folder), pid));
  SLUICE_RETURN_IF_ERROR(WaitReady(from.get(), pid, log));
  const std::string note = fmt::format(
      "note: simulated: a sluiced for this run with {} of {} and {} of host "
      "memory, computed by the CPU",
      Counted(options.ranks, "GPU"), FormatBytes(GpuMemory(options)),
      FormatBytes(HostMemory(options)));
  setenv(kPrivateNote, note.c_str(), /*overwrite=*/1);
  return daemon;
}

PrivateDaemon::~PrivateDaemon() { EndProcess(pid_, absl::Seconds(5)); }

void RunGuard(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) _exit(2);
  DieWithParent(static_cast<pid_t>(std::atol(arguments[0].c_str())));
  std::vector<char*> argv;
  for (size_t i = 1; i < arguments.size(); ++i) {
    argv.push_back(const_cast<char*>(arguments[i].c_str()));
  }
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  std::fprintf(stderr, "error: cannot start %s: %s\n", argv[0],
               std::strerror(errno));
  _exit(127);
}

absl::Status CheckPrivateSizes(const RunOptions& options, Bytes machine) {
  for (const auto& [flag, size, what] :
       {std::tuple("--hbm", options.hbm, "a simulated GPU"),
        {"--host", options.host, "the host pool"}}) {
    if (size <= machine) continue;
    return BadInput(
        "{} {}: {} is made of this machine's memory, which has {}: give less",
        flag, FormatBytes(size), what, FormatBytes(machine));
  }
  return absl::OkStatus();
}

Bytes MachineMemory() {
  const Bytes all(int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE));
  const auto limit = CgroupMemoryLimit();
  return limit ? std::min(all, limit->most) : all;
}

}  // namespace sluice::train
