#include "daemon/service/identity/peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <vector>

#include "absl/strings/str_split.h"
#include "proto/base/file_text.h"
#include "proto/base/pidfd.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// From Linux 6.5 and 6.15; Debian 12's headers lack them.
constexpr int kSoPeerPidfd = 77;
constexpr uint64_t kPidfdInfoExit = 1 << 3;
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroupid;
  uint32_t ids[11];  // pid, tgid, ppid, then uids and gids
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);  // PIDFD_INFO_SIZE_VER0
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);

struct ProcStat {
  char state = '?';
  uint64_t start_ticks = 0;
  int exit_code = 0;
};

bool OutOfDescriptors(int error) { return error == EMFILE || error == ENFILE; }

absl::Status NoDescriptors() {
  return ShortOf(Shortage::kOpenFiles,
                 "sluiced has no file descriptor left for another session: "
                 "try again, or raise its LimitNOFILE");
}

absl::StatusOr<ProcStat> ReadStat(int pid) {
  errno = 0;
  std::istringstream fields = ProcessStat(std::to_string(pid));
  if (OutOfDescriptors(errno)) return NoDescriptors();
  ProcStat stat;
  if (!(fields >> stat.state)) {
    return absl::NotFoundError(fmt::format("process {} is gone", pid));
  }
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  for (int field = 23; field < 52; ++field) fields >> skipped;
  fields >> stat.exit_code;
  return stat;
}

// Returns the error for a process that /proc does not show, for reason `why`.
absl::Status Gone(int pid, const absl::Status& why = absl::OkStatus()) {
  if (absl::IsResourceExhausted(why)) return why;
  if (!why.ok() && (kill(pid, 0) == 0 || errno == EPERM)) {
    return absl::PermissionDeniedError(fmt::format(
        "process {} runs, but /proc hides it from user {}, which sluiced runs "
        "as: mount /proc without hidepid, or with gid= of a group of that "
        "user, or run sluiced as root",
        pid, geteuid()));
  }
  return absl::PermissionDeniedError(
      fmt::format("process {} ended before it was identified", pid));
}

Exit FromWaitStatus(int status) {
  if (WIFSIGNALED(status)) return {Exit::Kind::kSignal, WTERMSIG(status)};
  return {Exit::Kind::kStatus, WEXITSTATUS(status)};
}

absl::StatusOr<UniqueFd> OpenPidfd(int socket, int pid, bool use_peerpidfd) {
  int peer = -1;
  socklen_t size = sizeof(peer);
  if (use_peerpidfd) {
    if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &peer, &size) == 0) {
      return UniqueFd(peer);
    }
    if (OutOfDescriptors(errno)) return NoDescriptors();
  }
  const auto before = ReadStat(pid);
  if (!before.ok()) return Gone(pid, before.status());
  UniqueFd pidfd = PidfdOf(pid);
  if (!pidfd && OutOfDescriptors(errno)) return NoDescriptors();
  if (!pidfd && errno == ESRCH) return Gone(pid);
  if (!pidfd) return PidfdFault(errno, fmt::format("watch process {}", pid));
  const auto after = ReadStat(pid);
  pollfd hung_up = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  poll(&hung_up, 1, 0);
  if (!after.ok()) return Gone(pid, after.status());
  if (after->start_ticks != before->start_ticks ||
      (hung_up.revents & (POLLHUP | POLLRDHUP)) != 0) {
    return Gone(pid);
  }
  return pidfd;
}

bool SameFile(int a, int b) {
  struct stat of_a, of_b;
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

// Returns the user that made the outermost user namespace between `pid` and
// this process. Returns `uid` if there is none, if root made it, or if the
// kernel does not allow this process to look (it is not root, and the peer is
// another user's).
absl::StatusOr<uint32_t> AnswersFor(int pid, uint32_t uid) {
  const UniqueFd own(open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC));
  UniqueFd space(
      open(fmt::format("/proc/{}/ns/user", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!(own && space) && OutOfDescriptors(errno)) return NoDescriptors();
  uid_t owner = 0;
  while (own && space && !SameFile(own.get(), space.get())) {
    if (ioctl(space.get(), NS_GET_OWNER_UID, &owner) != 0) return uid;
    space = UniqueFd(ioctl(space.get(), NS_GET_PARENT));
    if (!space && OutOfDescriptors(errno)) return NoDescriptors();
  }
  return owner != 0 ? owner : uid;
}

absl::Status Unmapped(const char* what) {
  return absl::PermissionDeniedError(fmt::format(
      "the peer is in a {} namespace that sluiced cannot see: give its "
      "container hostPID, or run sluiced in the same namespace",
      what));
}

}  // namespace

std::string CgroupFrom(const std::string& text) {
  std::string unified = "/", memory;
  for (const auto line : absl::StrSplit(text, '\n')) {
    // Format: "hierarchy:controllers:path".
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    if (parts[1].empty()) unified = parts[2];
    if (parts[1] == "memory") memory = parts[2];
  }
  return unified == "/" && !memory.empty() ? memory : unified;
}

absl::StatusOr<Identity> IdentifyPeer(int socket, const PeerRules& rules,
                                      bool use_peerpidfd) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoStatus(errno, "read a peer's credentials");
  }
  if (credentials.pid <= 0) return Unmapped("pid");
  if (credentials.uid == static_cast<uid_t>(-1) ||
      rules.users.MayBeUnmapped(credentials.uid)) {
    return Unmapped("user");
  }
  Identity identity;
  SLUICE_ASSIGN_OR_RETURN(identity.pidfd,
                          OpenPidfd(socket, credentials.pid, use_peerpidfd));
  const auto stat = ReadStat(credentials.pid);
  errno = 0;
  const std::string cgroup =
      TextOf(fmt::format("/proc/{}/cgroup", credentials.pid));
  if (OutOfDescriptors(errno)) return NoDescriptors();
  SLUICE_ASSIGN_OR_RETURN(const uint32_t uid,
                          AnswersFor(credentials.pid, credentials.uid));
  // If the pidfd's process still runs, all that was read is of that process.
  pollfd ended = {.fd = identity.pidfd.get(), .events = POLLIN, .revents = 0};
  if (!stat.ok()) return Gone(credentials.pid, stat.status());
  if (poll(&ended, 1, 0) != 0) return Gone(credentials.pid);
  identity.peer.principal = {uid, rules.cgroups.Of(CgroupFrom(cgroup))};
  identity.peer.pid = credentials.pid;
  identity.peer.start_ticks = stat->start_ticks;
  return identity;
}

Exit ReadExit(int pidfd, const Peer& peer) {
  // /proc has the status of a zombie. After the zombie was reaped, perhaps
  // between the two reads, the pidfd has it, so the pidfd is read last.
  const auto stat = ReadStat(peer.pid);
  if (stat.ok() && stat->state == 'Z' &&
      stat->start_ticks == peer.start_ticks) {
    return FromWaitStatus(stat->exit_code);
  }
  PidfdInfo info = {};
  info.mask = kPidfdInfoExit;
  if (ioctl(pidfd, kPidfdGetInfo, &info) == 0 &&
      (info.mask & kPidfdInfoExit) != 0) {
    return FromWaitStatus(info.exit_code);
  }
  return {};
}

}  // namespace sluice::daemon
