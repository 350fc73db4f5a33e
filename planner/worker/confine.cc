#include "planner/worker/confine.h"

#include <fmt/format.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace sluice::planner {
namespace {

#ifdef SLUICE_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Makes a failed allocation end the process like any other crash. An exception
// would print another line.
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

// A daemon that is not root may have capabilities, and its children inherit
// them.
bool GiveUpCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0 &&
         syscall(SYS_capset, &header, none) == 0;
}

// A daemon may have raised a limit for one of its threads, and its children
// inherit it. Lowering a limit is always allowed.
void GiveUpPriority() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_NICE, &none);
  setrlimit(RLIMIT_RTPRIO, &none);
}

}  // namespace

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
  // Root stays root: the administrator chose to run the daemon as root.
  if (geteuid() != 0 && !GiveUpCapabilities()) {
    return absl::PermissionDeniedError(fmt::format(
        "the worker cannot give up its capabilities: {}", strerror(errno)));
  }
  // The worker starts only itself, for a mixed-integer program, and no child
  // may gain privileges.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return refused();
  return absl::OkStatus();
}

// Makes SIGKILL follow the parent's end. If the parent ended before prctl, the
// pipe has no reader, which poll reports.
void EndWithParent(int out_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd out{.fd = out_fd, .events = 0, .revents = 0};
  if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) _exit(1);
}

}  // namespace sluice::planner
