#include "planner/memory/mip_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

extern char** environ;

namespace sluice::planner {
namespace {

// Question: kMagic, milliseconds, unit, bound, n, then lower, upper, size and
// start of each item. Answer: kMagic, bound, n or 0, then offsets. Both sides
// are one build; memfds, because a dead reader of a pipe sends signals.
using Words = std::vector<int64_t>;
constexpr int64_t kMagic = 0x736c7569636d6970;
constexpr size_t kHead = 5;
constexpr size_t kAnswerHead = 3;
constexpr size_t kMaxWords = 1 << 16;
// Start of a process, reading, writing.
constexpr absl::Duration kSlack = absl::Milliseconds(50);

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

bool WriteWords(int fd, const Words& words) {
  const char* at = reinterpret_cast<const char*>(words.data());
  size_t left = words.size() * sizeof(int64_t);
  while (left > 0) {
    const ssize_t count = write(fd, at, left);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    left -= static_cast<size_t>(count);
  }
  return true;
}

Words ReadWords(int fd) {
  lseek(fd, 0, SEEK_SET);
  Words words(kMaxWords);
  char* const at = reinterpret_cast<char*>(words.data());
  size_t have = 0;
  while (have < kMaxWords * sizeof(int64_t)) {
    const ssize_t count =
        read(fd, at + have, kMaxWords * sizeof(int64_t) - have);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    have += static_cast<size_t>(count);
  }
  words.resize(have / sizeof(int64_t));
  return words;
}

Words Question(const Problem& problem, const Offsets& start, int64_t bound,
               absl::Duration time_limit) {
  Words words = {kMagic, absl::ToInt64Milliseconds(time_limit), problem.unit,
                 bound, static_cast<int64_t>(problem.items.size())};
  for (size_t k = 0; k < problem.items.size(); ++k) {
    const Item& item = problem.items[k];
    words.insert(words.end(), {item.lower, item.upper, item.size, start[k]});
  }
  return words;
}

pid_t Spawn(const std::string& program, int in_fd, int out_fd) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in_fd, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null",
                                   O_WRONLY, 0);
  char verb[] = "mip";
  std::string name = program;
  char* const argv[] = {name.data(), verb, nullptr};
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

// Whether the child ended by itself, and well, before the deadline.
bool Await(pid_t pid, absl::Time deadline,
           const std::function<bool()>& stopped) {
  const Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  int ready = -1;
  do {
    // Rounded up: waiting ends when time is up, not a little before.
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now()) + 1;
    ready = poll(&ended, pidfd.get() >= 0 ? 1 : 0,
                 static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
  } while (ready < 0 && errno == EINTR && !stopped());
  if (ready != 1) kill(pid, SIGKILL);
  int status = -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return ready == 1 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool Overlaps(const Problem& problem, const Offsets& offsets) {
  for (size_t a = 0; a < offsets.size(); ++a) {
    const Item& x = problem.items[a];
    if (offsets[a] < 0) return true;
    for (size_t b = 0; b < a; ++b) {
      const Item& y = problem.items[b];
      if (x.lower < y.upper && y.lower < x.upper &&
          offsets[a] < offsets[b] + y.size &&
          offsets[b] < offsets[a] + x.size) {
        return true;
      }
    }
  }
  return false;
}

MipResult Checked(const Problem& problem, int64_t start_peak, int64_t bound,
                  const Words& answer) {
  MipResult result{.bound = bound};
  const size_t n = problem.items.size();
  if (answer.size() < kAnswerHead || answer[0] != kMagic) return result;
  const bool has_offsets = answer[2] != 0;
  if (answer.size() != kAnswerHead + (has_offsets ? n : 0)) return result;
  if (has_offsets) {
    Offsets offsets(answer.begin() + kAnswerHead, answer.end());
    if (Overlaps(problem, offsets)) return result;
    start_peak = std::min(start_peak, PeakOf(problem, offsets));
    result.offsets = std::move(offsets);
  }
  if (answer[1] <= start_peak) result.bound = std::max(bound, answer[1]);
  return result;
}

}  // namespace

MipResult SolveMip(const Problem& problem, const Offsets& start, int64_t bound,
                   absl::Duration time_limit, const std::string& program,
                   const std::function<bool()>& stopped) {
  if (program.empty()) return SolveDsaMip(problem, start, bound, time_limit);
  const absl::Time deadline = absl::Now() + time_limit;
  const Fd question(memfd_create("sluice-mip-question", MFD_CLOEXEC));
  const Fd answer(memfd_create("sluice-mip-answer", MFD_CLOEXEC));
  const Words words = Question(problem, start, bound, time_limit - kSlack);
  if (words.size() > kMaxWords || question.get() < 0 || answer.get() < 0 ||
      !WriteWords(question.get(), words)) {
    return {.bound = bound};
  }
  lseek(question.get(), 0, SEEK_SET);
  const pid_t pid = Spawn(program, question.get(), answer.get());
  if (pid < 0 || !Await(pid, deadline, stopped)) return {.bound = bound};
  return Checked(problem, PeakOf(problem, start), bound,
                 ReadWords(answer.get()));
}

int ServeMip(int in_fd, int out_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody is left to read the answer
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // What CBC prints goes nowhere.
  const int secluded = fcntl(out_fd, F_DUPFD_CLOEXEC, 3);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (secluded < 0 || null < 0 || dup2(null, out_fd) < 0) return 1;
  const Words words = ReadWords(in_fd);
  if (words.size() < kHead || words[0] != kMagic || words[4] < 0 ||
      words.size() != kHead + 4 * static_cast<size_t>(words[4])) {
    return 2;
  }
  Problem problem{.unit = words[2]};
  Offsets start;
  for (size_t at = kHead; at < words.size(); at += 4) {
    problem.items.push_back({.lower = static_cast<int32_t>(words[at]),
                             .upper = static_cast<int32_t>(words[at + 1]),
                             .size = words[at + 2]});
    start.push_back(words[at + 3]);
  }
  FinishProblem(&problem);
  const MipResult result =
      SolveDsaMip(problem, start, words[3], absl::Milliseconds(words[1]));
  Words answer = {kMagic, result.bound, result.offsets ? words[4] : 0};
  if (result.offsets) {
    answer.insert(answer.end(), result.offsets->begin(), result.offsets->end());
  }
  return WriteWords(secluded, answer) ? 0 : 1;
}

}  // namespace sluice::planner
