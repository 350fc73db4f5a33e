#include "daemon/store/keeper_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "proto/base/pidfd.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// In a process group of its own: a keeper kills what a dead daemon left in its
// group. SIGPIPE is not ignored there.
const SpawnOptions kAsAKeeper = {.signals = SpawnOptions::Signals::kDefaultPipe,
                                 .own_group = true};

}  // namespace

absl::StatusOr<std::unique_ptr<KeeperProcess>> KeeperProcess::Watch(
    Options options) {
  const pid_t pid = options.keeper.pid;
  auto keeper =
      std::unique_ptr<KeeperProcess>(new KeeperProcess(std::move(options)));
  keeper->pid_ = pid;
  UniqueFd life = PidfdOf(pid);
  if (!life && errno != ESRCH) return PidfdFault(errno, "watch the keeper");
  // Where it is not the parent it died before, and the number may be another's.
  if (life && getppid() == pid) keeper->life_ = std::move(life);
  return keeper;
}

bool KeeperProcess::EndsWithin(absl::Duration longest) const {
  if (!life_) return true;
  pollfd ended = {life_.get(), POLLIN, 0};
  const timespec timeout = absl::ToTimespec(longest);
  return ppoll(&ended, 1, &timeout, nullptr) == 1;
}

void KeeperProcess::End() {
  if (!child_) return;
  kill(pid_, SIGKILL);  // not waited for yet: it is its number
  waitpid(pid_, nullptr, 0);
  child_ = false;
}

absl::Status KeeperProcess::Replace() {
  End();
  life_.Reset();
  const std::string folder =
      std::filesystem::path(options_.notify_socket).parent_path();
  SLUICE_ASSIGN_OR_RETURN(
      pid_, Spawn({options_.keeper.program, "--adopt", std::to_string(getpid()),
                   "--runtime-dir", folder, "--max-descriptors",
                   std::to_string(options_.capacity)},
                  kAsAKeeper));
  child_ = true;
  life_ = PidfdOf(pid_);
  if (!life_) return PidfdFault(errno, "watch the keeper");
  return absl::OkStatus();
}

}  // namespace sluice::daemon
