#include "daemon/service/reload/reload.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "proto/base/pidfd.h"
#include "proto/base/spawn.h"
#include "proto/base/text.h"

namespace sluice::daemon {

int Reload::Stop() {
  if (pid_ == 0) return 0;
  int status = 0;
  if (life_) loop_->Remove(life_.get());
  kill(pid_, SIGKILL);  // no effect if it has ended
  waitpid(std::exchange(pid_, 0), &status, 0);
  life_.Reset();
  deadline_ = absl::InfiniteFuture();
  return status;
}

void Reload::Ask() {
  again_ = pid_ != 0;
  if (again_) return;
  said_ = UniqueFd(memfd_create("sluice-check", MFD_CLOEXEC));
  const auto pid = Spawn(check_, {.files = {{said_.get(), STDOUT_FILENO},
                                            {said_.get(), STDERR_FILENO}},
                                  .signals = SpawnOptions::Signals::kDefault});
  if (!pid.ok()) return done_(pid.status());
  life_ = PidfdOf(pid_ = *pid);
  if (!life_) {
    const absl::Status fault = PidfdFault(errno, "watch " + check_[0]);
    Stop();
    return done_(fault);
  }
  deadline_ = loop_->now() + absl::Seconds(30);
  loop_->Add(life_.get(), EPOLLIN, [this](uint32_t) { OnEnd(); });
}

void Reload::Expire(absl::Time now) {
  if (now < deadline_) return;
  deadline_ = absl::InfiniteFuture();
  kill(pid_, SIGKILL);
}

void Reload::OnEnd() {
  const int status = Stop();
  if (again_) return Ask();
  if (status == 0) return done_(absl::OkStatus());
  std::string said(4096, '\0');
  const ssize_t read = pread(said_.get(), said.data(), said.size(), 0);
  said.resize(static_cast<size_t>(std::max<ssize_t>(read, 0)));
  const size_t error = said.find("error: ");
  done_(absl::FailedPreconditionError(
      error != said.npos
          ? FirstLine(said.substr(error + 7))
          : fmt::format("{} ended with status {} (9: it took longer than 30 s)",
                        check_[0], status)));
}

}  // namespace sluice::daemon
