#include "deploy/bundle/verify/private_daemon.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "client/session/session.h"
#include "deploy/bundle/verify/check.h"
#include "proto/base/file_text.h"
#include "proto/base/pidfd.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::verify {
namespace {

constexpr char kConfiguration[] = "/sluiced.toml";

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
  const std::string configuration = folder.path() + kConfiguration;
  // Only this user can connect to the socket, so every rank may use every GPU.
  std::ofstream(configuration) << fmt::format(
      "[device]\ndriver = \"cuda\"\n[gpus]\naccess = \"any\"\n[pools]\n"
      "gpu_bytes = \"{}KiB\"\nhost_bytes = \"{}KiB\"\n[http]\nlisten = \"\"\n",
      pools.gpu / KiB(1), pools.host / KiB(1));
  SLUICE_ASSIGN_OR_RETURN(
      const pid_t keeper,
      Spawn({Beside("sluiced-keeper"), "--runtime-dir", folder.path(), "--",
             "--config", configuration},
            {.name = "sluiced-keeper",
             .signals = SpawnOptions::Signals::kDefault}));
  auto daemon = std::unique_ptr<PrivateDaemon>(
      new PrivateDaemon(std::move(folder), keeper));
  bool serves = false;
  const auto decided = [&] {
    serves = client::DaemonListens(daemon->socket());
    return serves || HasEnded(keeper);
  };
  if (!AwaitTrue(until, decided)) {
    return absl::DeadlineExceededError("sluiced did not serve in time");
  }
  if (serves) return daemon;
  return absl::InternalError("sluiced did not start: the log says why");
}

PrivateDaemon::~PrivateDaemon() {
  if (keeper_ != 0) EndDescendants();
}

absl::StatusOr<Bytes> PrivateDaemon::Leased() const {
  SLUICE_ASSIGN_OR_RETURN(const auto gpus, client::ListGpus(socket()));
  Bytes leased;
  for (const client::GpuState& gpu : gpus) leased += gpu.leased;
  return leased;
}

absl::Status PrivateDaemon::KillDaemon() {
  const auto pids = Descendants(keeper_);
  const auto daemon = std::ranges::find_if(pids, [](pid_t pid) {
    return TextOf(fmt::format("/proc/{}/comm", pid)) == "sluiced\n";
  });
  if (daemon == pids.end()) {
    return absl::InternalError("no sluiced runs under sluiced-keeper");
  }
  const UniqueFd pidfd = PidfdOf(*daemon);
  if (!pidfd || kill(*daemon, SIGKILL) != 0) {
    return ErrnoStatus(errno, "kill sluiced");
  }
  pollfd ended = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

absl::Status PrivateDaemon::End(absl::Time until) {
  kill(keeper_, SIGTERM);
  if (!AwaitTrue(until, [&] { return HasEnded(keeper_); })) {
    return absl::DeadlineExceededError("sluiced did not end in time");
  }
  const std::string bad_end = Reap(std::exchange(keeper_, 0));
  if (!bad_end.empty()) {
    return absl::InternalError("sluiced-keeper " + bad_end);
  }
  std::filesystem::remove(folder_.path() + kConfiguration);
  for (const auto& left : std::filesystem::directory_iterator(folder_.path())) {
    return absl::InternalError("sluiced left " +
                               left.path().filename().string());
  }
  return absl::OkStatus();
}

}  // namespace sluice::verify
