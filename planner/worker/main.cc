// sluice-worker: reads one plan request, writes one plan, then exits.
// README.md has the contract with the daemon.
#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "planner/memory/mip_process.h"
#include "planner/planner.h"
#include "proto/base/lost_output.h"
#include "proto/base/whole_io.h"
#include "proto/plan/codec.h"
#include "proto/plan/progress.h"

namespace sluice::planner {
namespace {

constexpr int kFault = 1;
constexpr int kBadInput = 2;
constexpr int kDeadline = 4;

// A valid but perhaps unproved plan, which is written if the solvers crash or
// run out of time.
struct Fallback {
  const char* bytes = nullptr;
  size_t size = 0;
  int fd = -1;
};
volatile sig_atomic_t fallback_ready = 0;
// Set by SIGUSR1 when other requests wait. The worker then writes its first
// plan and exits.
volatile sig_atomic_t hurried = 0;
Fallback fallback;

// Writes the fallback plan, if there is one. Returns whether all was written.
// WriteFallback and OnSignal make only async-signal-safe calls.
bool WriteFallback() {
  if (fallback_ready == 0) return false;
  fallback_ready = 0;  // another signal must not write the plan again
  const char* at = fallback.bytes;
  size_t left = fallback.size;
  while (left > 0) {
    const ssize_t count = write(fallback.fd, at, left);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    left -= static_cast<size_t>(count);
  }
  return true;
}

void OnSignal(int signal) {
  if (WriteFallback()) _exit(0);
  if (signal == SIGUSR1) {
    hurried = 1;
    return;
  }
  constexpr std::string_view kLate =
      "error: the plan was not ready at its deadline\n";
  constexpr std::string_view kCrashed =
      "error: a solver crashed, or needs more memory than the worker may "
      "take\n";
  const std::string_view message = signal == SIGALRM ? kLate : kCrashed;
  if (write(STDERR_FILENO, message.data(), message.size()) < 0) {
    // The error is ignored: the exit status reports the failure too.
  }
  _exit(signal == SIGALRM ? kDeadline : kFault);
}

// Installs the handlers, so that the first plan is written even if a solver
// crashes or takes too much memory.
void CatchSignals() {
  static char stack[1 << 16];  // a crash may have exhausted the normal stack
  const stack_t alternate{
      .ss_sp = stack, .ss_flags = 0, .ss_size = sizeof(stack)};
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_ONSTACK;
  for (const int signal :
       {SIGALRM, SIGUSR1, SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) {
    sigaction(signal, &action, nullptr);
  }
  // The daemon starts the worker with SIGUSR1 blocked, because the default
  // action would end it.
  sigset_t hurry{};
  sigaddset(&hurry, SIGUSR1);
  sigprocmask(SIG_UNBLOCK, &hurry, nullptr);
}

// Ends the process at the time limit. The limit of CPU time ends it soon after
// if SIGALRM did not.
void ArmDeadline(double seconds) {
  CatchSignals();
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec = static_cast<suseconds_t>(
      (seconds - static_cast<double>(timer.it_value.tv_sec)) * 1e6);
  setitimer(ITIMER_REAL, &timer, nullptr);
  const auto cpu = static_cast<rlim_t>(seconds) + 2;
  const rlimit limit{cpu, cpu + 1};
  setrlimit(RLIMIT_CPU, &limit);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
}

int Fail(int code, const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return code;
}

// Redirects standard output to /dev/null, so that a solver's prints never get
// into a plan. Returns a duplicate of `out_fd`.
int SecludeOutput(int out_fd) {
  const int secluded = fcntl(out_fd, F_DUPFD_CLOEXEC, 3);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (null >= 0) {
    dup2(null, STDOUT_FILENO);
    close(null);
  }
  return secluded >= 0 ? secluded : out_fd;
}

// Overwrites the previous progress line in place.
void WriteProgress(int fd, const NodeProgress& progress) {
  const std::string line =
      plan::WriteProgress({progress.done, progress.all, progress.segment,
                           progress.arm, progress.peak, progress.lower_bound});
  // Progress is optional.
  if (pwrite(fd, line.data(), line.size(), 0) < 0) return;
}

struct Confinement {
  // Limit of the address space; 0 means no limit. Has no effect under a
  // sanitizer, because its shadow memory is address space too.
  uint64_t memory_bytes = 0;
  std::optional<uint32_t> uid, gid;
};

#ifdef SLUICE_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Ends the process like a crash, so that OnSignal writes the fallback plan. An
// uncaught std::bad_alloc would print a line of its own.
void OutOfMemory() { raise(SIGABRT); }

absl::Status LimitMemory(uint64_t bytes) {
  if (bytes == 0 || kSanitized) return absl::OkStatus();
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) {
    return absl::PermissionDeniedError(
        fmt::format("cannot limit the worker's memory to {} bytes: {}", bytes,
                    strerror(errno)));
  }
  std::set_new_handler(OutOfMemory);
  return absl::OkStatus();
}

// Children inherit ambient capabilities, which a plain user's daemon may have.
bool GiveUpCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0 &&
         syscall(SYS_capset, &header, none) == 0;
}

// The worker inherits the daemon's limits, which may allow real-time priority.
// Lowering a limit is always allowed.
void GiveUpPriority() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_NICE, &none);
  setrlimit(RLIMIT_RTPRIO, &none);
}

// Limits memory and priority, and drops groups, user, capabilities and the
// right to gain privileges, because the solvers process untrusted numbers. Call
// it before a request is read. Returns PermissionDenied if a step fails, for
// example because only root may change the user.
absl::Status Confine(const Confinement& to) {
  const absl::Status limited = LimitMemory(to.memory_bytes);
  if (!limited.ok()) return limited;
  GiveUpPriority();
  const auto refused = [&] {
    return absl::PermissionDeniedError(
        fmt::format("the worker cannot become user {}: {}", to.uid.value_or(0),
                    strerror(errno)));
  };
  if (to.gid) {
    if (setgroups(0, nullptr) != 0) return refused();
    if (setresgid(*to.gid, *to.gid, *to.gid) != 0) return refused();
  }
  if (to.uid && setresuid(*to.uid, *to.uid, *to.uid) != 0) return refused();
  // A worker that is still root keeps its capabilities: the administrator chose
  // to run the daemon as root without another user for workers.
  if (geteuid() != 0 && !GiveUpCapabilities()) {
    return absl::PermissionDeniedError(fmt::format(
        "the worker cannot give up its capabilities: {}", strerror(errno)));
  }
  // The only program that the worker starts is itself (`mip`).
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return refused();
  return absl::OkStatus();
}

// Arranges that this process is killed when the thread that started it ends,
// because only that thread reads `out_fd`. If the thread has already ended,
// poll reports a pipe without a reader, and the process exits. Call it after
// Confine, because a change of user would clear the death signal.
void EndWithParent(int out_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd out{.fd = out_fd, .events = 0, .revents = 0};
  if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) _exit(1);
}

int Run(int in_fd, int out_fd, int progress_fd, double time_limit_s) {
  ArmDeadline(time_limit_s);
  const int secluded_fd = SecludeOutput(out_fd);
  // Reads a memfd or file from its start, or the rest of a pipe.
  lseek(in_fd, 0, SEEK_SET);  // fails with ESPIPE on a pipe, which is fine
  auto bytes = ReadAll(in_fd, plan::kMaxEncodedBytes,
                       fmt::format("the request from fd {}", in_fd));
  if (!bytes.ok()) return Fail(kBadInput, bytes.status());
  auto request = plan::DecodePlanRequest(*bytes);
  if (!request.ok()) return Fail(kBadInput, request.status());
  UnitBook book(request->known);
  if (progress_fd >= 0) {
    book.watch = [progress_fd](const NodeProgress& progress) {
      WriteProgress(progress_fd, progress);
    };
  }
  // The safe plan comes first, then solvers that may crash or take too long.
  auto greedy = PlanNode(request->profiles, request->resources,
                         {.time_limit = absl::Seconds(time_limit_s * 0.2),
                          .use_search = false,
                          .use_cbc = false},
                         &book);
  if (!greedy.ok()) {
    const bool bad_input = absl::IsInvalidArgument(greedy.status());
    return Fail(bad_input ? kBadInput : kFault, greedy.status());
  }
  const std::string first = plan::Encode(*greedy);
  fallback = {first.data(), first.size(), secluded_fd};
  fallback_ready = 1;
  if (hurried != 0) OnSignal(SIGUSR1);
  book.DropUnproved();
  const auto plan = PlanNode(request->profiles, request->resources,
                             {.time_limit = absl::Seconds(time_limit_s * 0.5),
                              .mip_program = "/proc/self/exe"},
                             &book);
  const std::string second = plan.ok() ? plan::Encode(*plan) : first;
  fallback_ready = 0;  // OnSignal must not write into a half-written plan
  const absl::Status written = WriteAll(secluded_fd, second, "the plan");
  return written.ok() ? 0 : Fail(kFault, written);
}

}  // namespace
}  // namespace sluice::planner

int main(int argc, char** argv) {
  // PlanMemory (planner/memory/mip_process.h) starts this mode, not a user.
  if (argc == 2 && std::string_view(argv[1]) == "mip") {
    return sluice::planner::ServeMip(STDIN_FILENO, STDOUT_FILENO);
  }
  sluice::FailOnLostOutput();
  CLI::App app{"Solves one plan request of sluiced."};
  int in_fd = STDIN_FILENO;
  int out_fd = STDOUT_FILENO;
  int progress_fd = -1;
  double time_limit_s = 20;
  sluice::planner::Confinement confinement;
  app.add_option("--in-fd", in_fd, "where the request is read");
  app.add_option("--out-fd", out_fd, "where the plan is written");
  app.add_option("--progress-fd", progress_fd,
                 "a file in which one line shows the progress");
  app.add_option("--time-limit-s", time_limit_s, "ends after these seconds")
      ->check(CLI::Range(0.1, 86400.0));
  app.add_option("--memory-bytes", confinement.memory_bytes,
                 "limit of its address space; 0 for no limit");
  app.add_option("--uid", confinement.uid, "its user; only root may set it");
  app.add_option("--gid", confinement.gid, "its only group");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return sluice::planner::kBadInput;
  }
  const absl::Status confined = sluice::planner::Confine(confinement);
  if (!confined.ok()) {
    return sluice::planner::Fail(sluice::planner::kFault, confined);
  }
  sluice::planner::EndWithParent(out_fd);
  return sluice::planner::Run(in_fd, out_fd, progress_fd, time_limit_s);
}
