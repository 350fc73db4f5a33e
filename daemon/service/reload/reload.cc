#include "daemon/service/reload/reload.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "proto/base/pidfd.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

constexpr size_t kMostRead = 4096;
constexpr std::string_view kError = "error: ";

}  // namespace

Reload::Reload(std::vector<std::string> check, Loop* loop,
               std::function<void(absl::Status)> done)
    : check_(std::move(check)), loop_(loop), done_(std::move(done)) {}

void Reload::Stop() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  Reap();
}

void Reload::Ask() {
  again_ = pid_ != 0;
  if (again_) return;
  if (const absl::Status started = Start(); !started.ok()) done_(started);
}

absl::Status Reload::Start() {
  errors_ = UniqueFd(memfd_create("sluice-check", MFD_CLOEXEC));
  if (!errors_) return ErrnoStatus(errno, "make memory for what it says");
  const UniqueFd nothing(open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!nothing) return ErrnoStatus(errno, "open /dev/null");
  SLUICE_ASSIGN_OR_RETURN(
      pid_, Spawn(check_, {.files = {{nothing.get(), STDOUT_FILENO},
                                     {errors_.get(), STDERR_FILENO}},
                           .signals = SpawnOptions::Signals::kDefault}));
  late_ = false;
  deadline_ = loop_->now() + kLongest;
  life_ = PidfdOf(pid_);
  if (!life_) {
    const int error = errno;
    kill(pid_, SIGKILL);
    Reap();
    return PidfdFault(error, "watch " + check_[0]);
  }
  loop_->Add(life_.get(), EPOLLIN, [this](uint32_t) { OnEnd(); });
  return absl::OkStatus();
}

void Reload::Expire(absl::Time now) {
  if (now < deadline_) return;
  late_ = true;
  deadline_ = absl::InfiniteFuture();
  kill(pid_, SIGKILL);
}

int Reload::Reap() {
  int status = 0;
  waitpid(std::exchange(pid_, 0), &status, 0);
  if (life_) loop_->Remove(life_.get());
  life_.Reset();
  deadline_ = absl::InfiniteFuture();
  return status;
}

void Reload::OnEnd() {
  const int status = Reap();
  if (again_) return Ask();
  done_(Said(status));
}

absl::Status Reload::Said(int status) const {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  if (late_) {
    return absl::FailedPreconditionError(fmt::format(
        "{} took longer than {} s", check_[0], absl::ToInt64Seconds(kLongest)));
  }
  std::string text(kMostRead, '\0');
  const ssize_t read = pread(errors_.get(), text.data(), text.size(), 0);
  text.resize(read > 0 ? static_cast<size_t>(read) : 0);
  const size_t error = text.find(kError);
  return absl::FailedPreconditionError(
      error == text.npos
          ? fmt::format("{} ended with status {}", check_[0], status)
          : FirstLine(text.substr(error + kError.size())));
}

}  // namespace sluice::daemon
