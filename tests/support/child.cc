#include "tests/support/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::testing {
namespace {

struct Pipe {
  UniqueFd read, write;
};

Pipe MakePipe() {
  std::array<int, 2> ends;
  SLUICE_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void EnterChild(const Pipe& out, const Pipe& err, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  dup2(out.write.get(), STDOUT_FILENO);
  dup2(err.write.get(), STDERR_FILENO);
}

// Appends up to 4 KiB of the available bytes. Returns false if there are none.
bool Drain(UniqueFd& fd, std::string& into) {
  std::array<char, 4096> buffer;
  const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
  if (got > 0) into.append(buffer.data(), static_cast<size_t>(got));
  if (got == 0) fd.Reset();
  return got > 0;
}

}  // namespace

Child::Child(pid_t pid, UniqueFd out, UniqueFd err)
    : pid_(pid), out_fd_(std::move(out)), err_fd_(std::move(err)) {}

std::unique_ptr<Child> Child::Fork(const std::function<void()>& body) {
  Pipe out = MakePipe(), err = MakePipe();
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  SLUICE_CHECK(pid >= 0);
  if (pid == 0) {
    EnterChild(out, err, parent);
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  return std::unique_ptr<Child>(
      new Child(pid, std::move(out.read), std::move(err.read)));
}

std::unique_ptr<Child> Child::Spawn(
    const std::vector<std::string>& argv,
    const std::vector<std::string>& environment) {
  Pipe out = MakePipe(), err = MakePipe();
  std::vector<char*> raw;
  for (const std::string& argument : argv) {
    raw.push_back(const_cast<char*>(argument.c_str()));
  }
  raw.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  SLUICE_CHECK(pid >= 0);
  if (pid == 0) {
    EnterChild(out, err, parent);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    for (const std::string& entry : environment) {
      putenv(const_cast<char*>(entry.c_str()));
    }
    execv(raw[0], raw.data());
    std::fprintf(stderr, "cannot run %s: errno %d\n", raw[0], errno);
    std::fflush(stderr);
    _exit(127);
  }
  return std::unique_ptr<Child>(
      new Child(pid, std::move(out.read), std::move(err.read)));
}

Child::~Child() {
  if (!reaped_) {
    Kill(SIGKILL);
    Reap(/*block=*/true);
  }
}

void Child::Kill(int signal) {
  if (!reaped_) kill(pid_, signal);
}

bool Child::Reap(bool block) {
  if (reaped_) return true;
  int status;
  pid_t got;
  do {
    got = waitpid(pid_, &status, block ? 0 : WNOHANG);
  } while (got < 0 && errno == EINTR);
  if (got != pid_) return false;
  reaped_ = true;
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  return true;
}

void Child::Read(absl::Duration timeout) {
  std::array<pollfd, 2> polls = {
      {{out_fd_.get(), POLLIN, 0}, {err_fd_.get(), POLLIN, 0}}};
  poll(polls.data(), polls.size(),
       static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if (polls[0].revents) Drain(out_fd_, result_.out);
  if (polls[1].revents) Drain(err_fd_, result_.err);
}

bool Child::WaitForOutput(const std::string& text, absl::Duration timeout) {
  const MonotonicClock clock;
  const absl::Time deadline = clock.Now() + timeout;
  while (result_.out.find(text) == std::string::npos) {
    if (clock.Now() >= deadline || !out_fd_) return false;
    Read(absl::Milliseconds(20));
  }
  return true;
}

std::string Child::output() {
  Read(absl::ZeroDuration());
  return result_.out;
}

ChildResult Child::Join(absl::Duration timeout) {
  const MonotonicClock clock;
  const absl::Time deadline = clock.Now() + timeout;
  // A grandchild may keep the pipes open, so the child's own end counts.
  while (!Reap(/*block=*/false)) {
    if (clock.Now() >= deadline) {
      Kill(SIGKILL);
      Reap(/*block=*/true);
      break;
    }
    Read(absl::Milliseconds(5));
  }
  for (auto [fd, text] :
       {std::pair{&out_fd_, &result_.out}, std::pair{&err_fd_, &result_.err}}) {
    if (!*fd) continue;
    fcntl(fd->get(), F_SETFL, O_NONBLOCK);
    while (*fd && Drain(*fd, *text)) {
    }
  }
  return result_;
}

void Child::ExpectSuccess(absl::Duration timeout) {
  const ChildResult result = Join(timeout);
  EXPECT_EQ(result.exit_code, 0) << "child " << pid_ << " ended with signal "
                                 << result.signal << "\n--- its stdout\n"
                                 << result.out << "--- its stderr\n"
                                 << result.err;
}

bool PinThisProcess(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  return sched_setaffinity(0, sizeof(cores), &cores) == 0;
}

std::string BinaryPath(const std::string& name) {
  const char* directory = std::getenv("SLUICE_BIN_DIR");
  if (directory != nullptr) return std::string(directory) + "/" + name;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

}  // namespace sluice::testing
