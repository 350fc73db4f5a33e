#include "tests/integration/daemon/kept_daemon.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/keeper/notify_receiver.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "tests/support/child.h"

namespace sluice::testing {
namespace {

using daemon::KeptDescriptors;
using daemon::Notification;
using daemon::NotifyReceiver;

constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr absl::Duration kLookAgain = absl::Milliseconds(2);

NotifyReceiver Bind(const std::string& path) {
  auto receiver = NotifyReceiver::Bind(path);
  SLUICE_CHECK_OK(receiver.status());
  return *std::move(receiver);
}

}  // namespace

KeptDaemon::KeptDaemon(const std::string& toml, int64_t capacity)
    : receiver_(Bind(directory_.File("test-keeper.sock"))) {
  std::ofstream file(File("sluiced.toml"));
  if (toml.find("[http]") == std::string::npos) {
    file << "[http]\nlisten = \"\"\n";
  }
  // Tests kill the daemon more often than the default allows.
  if (toml.find("[restart]") == std::string::npos) {
    file << "[restart]\nfreeze_after = 0\n";
  }
  file << "[device]\ndriver = \"sim\"\n" << toml;
  kept_ = std::make_unique<KeptDescriptors>(capacity);
  pump_ = std::thread([this] { Pump(); });
}

KeptDaemon::~KeptDaemon() {
  if (pid_ != 0) Kill();
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  pump_.join();
}

void KeptDaemon::Fork() {
  const MutexLock lock(mutex_);
  ready_ = ignoring_ = false;
  kill_behind_ = -1;
  // The shell opens the log to append to it, then becomes the daemon by exec.
  const auto started = daemon::DaemonProcess::Start(
      {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>>" + File("stderr"),
       BinaryPath(program_), "--config", File("sluiced.toml"), "--runtime-dir",
       directory_.path()},
      receiver_.path(), *kept_);
  SLUICE_CHECK_OK(started.status());
  pid_ = started->pid();
}

void KeptDaemon::Start() {
  Fork();
  for (const absl::Time late = absl::Now() + kPatience; absl::Now() < late;) {
    {
      const MutexLock lock(mutex_);
      if (ready_) return;
    }
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = 0;
      break;
    }
    absl::SleepFor(kLookAgain);
  }
  FAIL() << "sluiced did not start: " << Log();
}

int KeptDaemon::StartThatFails() {
  Fork();
  return Join();
}

void KeptDaemon::Kill() {
  ::kill(pid_, SIGKILL);
  Join();
}

int KeptDaemon::Join() {
  int status = 0;
  const absl::Time late = absl::Now() + kPatience;
  while (waitpid(pid_, &status, WNOHANG) != pid_) {
    if (absl::Now() > late) return -1;
    absl::SleepFor(kLookAgain);
  }
  ::kill(-pid_, SIGKILL);
  const MutexLock lock(mutex_);
  TakeMessages();
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

ChildResult KeptDaemon::CheckState(const std::string& program,
                                   const std::string& config) const {
  return Child::Spawn({BinaryPath(program), "--config", File(config),
                       "--runtime-dir", File(""), "--check-state"})
      ->Join();
}

void KeptDaemon::Ignore() {
  const MutexLock lock(mutex_);
  TakeMessages();
  ignoring_ = true;
}

void KeptDaemon::Answer() {
  const MutexLock lock(mutex_);
  ignoring_ = false;
}

void KeptDaemon::KillBehind(int messages) {
  const MutexLock lock(mutex_);
  kill_behind_ = messages;
}

bool KeptDaemon::WasKilled() const {
  const MutexLock lock(mutex_);
  return ignoring_;
}

// While messages are ignored, they stay in the socket. They are dropped once
// the daemon has ended, or received after Answer().
void KeptDaemon::TakeMessages() {
  while (auto datagram = receiver_.Receive()) {
    if (ignoring_) continue;
    const auto said = daemon::ParseNotification(datagram->text);
    SLUICE_CHECK_OK(said.status());
    ready_ |= datagram->text.starts_with("READY=1");
    kept_->Apply(*said, std::move(datagram->fds)).IgnoreError();
    if (kill_behind_ < 0 || kill_behind_-- > 0) continue;
    ignoring_ = true;
    ::kill(pid_, SIGKILL);
  }
}

void KeptDaemon::Pump() {
  while (true) {
    pollfd readable = {receiver_.fd(), POLLIN, 0};
    poll(&readable, 1, 10);
    bool ignoring;
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      ignoring = ignoring_;
      if (!ignoring) TakeMessages();
    }
    if (ignoring) absl::SleepFor(kLookAgain);
  }
}

bool KeptDaemon::Has(const std::string& name) const {
  const MutexLock lock(mutex_);
  return kept_->all().contains(name);
}

int KeptDaemon::Count(const std::string& prefix) const {
  const MutexLock lock(mutex_);
  return static_cast<int>(std::ranges::count_if(
      kept_->all(),
      [&](const auto& each) { return each.first.starts_with(prefix); }));
}

bool KeptDaemon::WaitFor(const std::string& name, bool kept) const {
  for (const absl::Time late = absl::Now() + kPatience; absl::Now() < late;) {
    if (Has(name) == kept) return true;
    absl::SleepFor(kLookAgain);
  }
  return false;
}

bool KeptDaemon::WaitForLog(const std::string& text) const {
  for (const absl::Time late = absl::Now() + kPatience; absl::Now() < late;) {
    if (Log().find(text) != std::string::npos) return true;
    absl::SleepFor(kLookAgain);
  }
  return false;
}

bool KeptDaemon::WaitUntilGone(const std::string& name) const {
  return WaitFor(name, false);
}

bool KeptDaemon::WaitUntilKept(const std::string& name) const {
  return WaitFor(name, true);
}

void KeptDaemon::Lose(const std::string& name) {
  const MutexLock lock(mutex_);
  const Notification lost = {Notification::Kind::kRemove, name};
  SLUICE_CHECK_OK(kept_->Apply(lost, {}));
}

void KeptDaemon::Put(const std::string& name, UniqueFd fd) {
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(fd));
  const MutexLock lock(mutex_);
  const Notification put = {Notification::Kind::kPut, name};
  SLUICE_CHECK_OK(kept_->Apply(put, std::move(fds)));
}

UniqueFd KeptDaemon::Copy(const std::string& name) const {
  const MutexLock lock(mutex_);
  auto copy = kept_->all().at(name).Duplicate();
  SLUICE_CHECK_OK(copy.status());
  return *std::move(copy);
}

std::string KeptDaemon::Log() const {
  std::ifstream file(File("stderr"));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace sluice::testing
