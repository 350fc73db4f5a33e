#include "deploy/bundle/verify/private_daemon.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/time/clock.h"
#include "client/session/session.h"
#include "deploy/bundle/verify/descendants.h"
#include "proto/base/file_text.h"
#include "proto/base/pidfd.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::verify {
namespace {

constexpr absl::Duration kPrivateDaemonNap = absl::Milliseconds(10);
constexpr char kConfiguration[] = "sluiced.toml";

std::string Beside(const char* program) {
  return std::filesystem::read_symlink("/proc/self/exe")
      .replace_filename(program);
}

// Only this user can connect to the socket, so every rank may use every GPU.
void WriteConfiguration(const std::string& path,
                        const PrivateDaemon::Pools& pools) {
  std::ofstream(path) << fmt::format(
      "[device]\ndriver = \"cuda\"\n[gpus]\naccess = \"any\"\n[pools]\n"
      "gpu_bytes = \"{}KiB\"\nhost_bytes = \"{}KiB\"\n[http]\nlisten = \"\"\n",
      pools.gpu / KiB(1), pools.host / KiB(1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrivateDaemon>> PrivateDaemon::Start(
    const Pools& pools, absl::Time until) {
  for (const char* program : {"sluiced-keeper", "sluiced", "sluice-worker"}) {
    if (!std::filesystem::exists(Beside(program))) {
      return absl::NotFoundError(
          fmt::format("there is no {} beside this program", program));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(TemporaryFolder folder,
                          TemporaryFolder::Make("daemon"));
  const std::string configuration = folder.path() + "/" + kConfiguration;
  WriteConfiguration(configuration, pools);
  SLUICE_ASSIGN_OR_RETURN(
      const pid_t keeper,
      Spawn({Beside("sluiced-keeper"), "--runtime-dir", folder.path(), "--",
             "--config", configuration},
            {.name = "sluiced-keeper",
             .signals = SpawnOptions::Signals::kDefault}));
  auto daemon = std::unique_ptr<PrivateDaemon>(
      new PrivateDaemon(std::move(folder), keeper));
  SLUICE_RETURN_IF_ERROR(daemon->AwaitServing(until));
  return daemon;
}

PrivateDaemon::~PrivateDaemon() {
  if (keeper_ != 0) EndDescendants();
}

absl::Status PrivateDaemon::AwaitServing(absl::Time until) const {
  while (!client::DaemonListens(socket())) {
    if (HasEnded(keeper_)) {
      return absl::InternalError("sluiced did not start: the log says why");
    }
    if (absl::Now() >= until) {
      return absl::DeadlineExceededError("sluiced did not serve in time");
    }
    absl::SleepFor(kPrivateDaemonNap);
  }
  return absl::OkStatus();
}

absl::StatusOr<pid_t> PrivateDaemon::Daemon() const {
  for (const pid_t pid : Descendants(keeper_)) {
    if (TextOf(fmt::format("/proc/{}/comm", pid)) == "sluiced\n") return pid;
  }
  return absl::InternalError("no sluiced runs under sluiced-keeper");
}

absl::StatusOr<Bytes> PrivateDaemon::Leased() const {
  SLUICE_ASSIGN_OR_RETURN(const auto gpus, client::ListGpus(socket()));
  Bytes leased;
  for (const client::GpuState& gpu : gpus) leased += gpu.leased;
  return leased;
}

absl::Status PrivateDaemon::KillDaemon() {
  SLUICE_ASSIGN_OR_RETURN(const pid_t pid, Daemon());
  const UniqueFd pidfd = PidfdOf(pid);
  if (!pidfd || kill(pid, SIGKILL) != 0) {
    return ErrnoStatus(errno, "kill sluiced");
  }
  pollfd ended = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

absl::Status PrivateDaemon::End(absl::Time until) {
  kill(keeper_, SIGTERM);
  while (!HasEnded(keeper_)) {
    if (absl::Now() >= until) {
      return absl::DeadlineExceededError("sluiced did not end in time");
    }
    absl::SleepFor(kPrivateDaemonNap);
  }
  int status = 0;
  waitpid(std::exchange(keeper_, 0), &status, 0);
  if (status != 0) {
    return absl::InternalError("sluiced-keeper " + HowItEnded(status));
  }
  std::filesystem::remove(folder_.path() + "/" + kConfiguration);
  for (const auto& left : std::filesystem::directory_iterator(folder_.path())) {
    return absl::InternalError("sluiced left " +
                               left.path().filename().string());
  }
  return absl::OkStatus();
}

}  // namespace sluice::verify
