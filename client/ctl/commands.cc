#include "client/ctl/commands.h"

#include <fmt/format.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/ctl/admin/admin.h"
#include "client/ctl/bandwidth/bandwidth.h"
#include "client/ctl/bundle/support_bundle.h"
#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/facts.h"
#include "client/ctl/status/render.h"
#include "client/ctl/text/format.h"
#include "client/session/session.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"
#include "proto/plan/codec.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;
using Renderer = absl::StatusOr<std::string> (*)(const std::string&);

absl::StatusOr<std::string> SnapshotJson(const Flags& flags) {
  if (flags.admin) return ReadStatus(flags.admin_socket);
  SLUICE_ASSIGN_OR_RETURN(auto status, client::QueryNode(flags.socket));
  return std::move(status.json);
}

// Prints a note if --admin would show this user more. The daemon's own user,
// unless it is root, sees everything without --admin.
void NoteWhatIsHidden(const Flags& flags) {
  const char* const admin = flags.admin_socket.c_str();
  struct stat info;
  if (flags.admin || stat(admin, &info) != 0 ||
      access(admin, R_OK | W_OK) != 0 ||
      (info.st_uid == geteuid() && info.st_uid != 0)) {
    return;
  }
  std::fputs(
      "note: other users' jobs, limits and events are not shown: "
      "sluicectl --admin shows them too\n",
      stderr);
}

// Returns the snapshot as text, or with --json its parts `keys`.
absl::StatusOr<std::string> Snapshot(const Flags& flags, Renderer render,
                                     const std::vector<std::string>& keys) {
  SLUICE_ASSIGN_OR_RETURN(const std::string json, SnapshotJson(flags));
  return flags.json ? JsonPart(json, keys) : render(json);
}

absl::StatusOr<uint32_t> UserId(const std::string& user) {
  uint32_t uid = 0;
  const char* end = user.data() + user.size();
  if (const auto [at, error] = std::from_chars(user.data(), end, uid);
      error == std::errc() && at == end && uid != UINT32_MAX) {
    return uid;
  }
  if (const passwd* entry = getpwnam(user.c_str())) return entry->pw_uid;
  return absl::InvalidArgumentError(
      fmt::format("there is no user '{}': give a user's name or number", user));
}

// Parses a size, or `none` as 0.
absl::StatusOr<Bytes> SizeOr(const char* none, const char* flag,
                             const std::string& text, const char* see = "") {
  if (text == none) return Bytes(0);
  const absl::StatusOr<Bytes> size = ParseBytes(text);
  if (size.ok() && *size > Bytes(0)) return *size;
  return absl::InvalidArgumentError(
      size.ok() ? fmt::format("{} '{}': give a size above 0, or '{}'", flag,
                              text, none)
                : fmt::format("{} {}, or {}{}", flag,
                              std::string(size.status().message()), none, see));
}

// Parses a limit. "" leaves the limit unchanged; "unlimited" is 0 on the wire.
absl::StatusOr<std::optional<Bytes>> Limit(const char* flag,
                                           const std::string& text) {
  if (text.empty()) return std::nullopt;
  return SizeOr("unlimited", flag, text, " (see sluicectl budget set --help)");
}

// Formats an unlimited limit as null, as the snapshot does.
json LimitJson(const std::optional<Bytes>& limit) {
  return !limit || *limit == Bytes(0) ? json() : json(limit->count());
}

json NumberOrNull(const std::optional<uint32_t>& number) {
  return number ? json(*number) : json();
}

json NullIfEmpty(const std::string& text) {
  return text.empty() ? json() : json(text);
}

std::string OptionalLimitText(const std::optional<Bytes>& limit) {
  return !limit || *limit == Bytes(0) ? "unlimited" : FormatBytes(*limit);
}

// Lists processes that still hold memory but have no session. Waits at most a
// second for memory of ended processes to return.
std::string StillHeld(const Flags& flags) {
  for (int i = 0; i < 10; ++i) {
    bool returning = false;
    const auto json = ReadStatus(flags.admin_socket);
    const auto lines = json.ok() ? RenderHolders(*json, returning) : json;
    if (!lines.ok() || !lines->empty() || !returning) {
      return lines.value_or("");
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
  return "";
}

// Control sequences: to the alternate screen without a cursor, and back.
constexpr const char* kEnter = "\x1b[?1049h\x1b[?25l";
constexpr const char* kLeave = "\x1b[?25h\x1b[?1049l";

// Once an object of this class exists, SIGINT and SIGTERM end waits instead of
// the process, also in threads that start later, such as gRPC's. With `q_ends`
// the key q ends waits too, if standard input is a terminal.
class Interrupts {
 public:
  explicit Interrupts(bool q_ends = false) {
    reads_keys_ = q_ends && tcgetattr(STDIN_FILENO, &terminal_) == 0;
    if (reads_keys_) {
      termios keys = terminal_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    fd_ = UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC));
  }
  ~Interrupts() {
    if (reads_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_);
  }
  Interrupts(const Interrupts&) = delete;

  // Returns false if a signal or q came. Another key ends the wait early.
  bool Wait(absl::Duration time) {
    pollfd readable[] = {{.fd = fd_.get(), .events = POLLIN, .revents = 0},
                         {.fd = reads_keys_ ? STDIN_FILENO : -1,
                          .events = POLLIN,
                          .revents = 0}};
    poll(readable, 2, static_cast<int>(absl::ToInt64Milliseconds(time)));
    if (readable[1].revents != 0) {
      char key = 'q';  // a closed terminal counts as q
      return read(STDIN_FILENO, &key, 1) == 1 && key != 'q' && key != 'Q';
    }
    return readable[0].revents == 0;
  }

 private:
  bool reads_keys_;
  termios terminal_ = {};  // restored at the end
  UniqueFd fd_;
};

// Draws as much of the text as fits, over the previous picture.
void Show(const std::string& text) {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) {
    size = {.ws_row = 24, .ws_col = 80};
  }
  std::string out = "\x1b[H";  // to the first line
  int row = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (++row > size.ws_row) break;
    if (row > 1) out += "\r\n";
    out += FirstOf({line.data(), line.size()}, size.ws_col);
    out += "\x1b[K";  // clears the rest of the line
  }
  out += "\x1b[J";  // clears the rest of the screen
  std::fputs(out.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

void FillDefaults(Flags& flags) {
  flags.admin |= !flags.admin_socket.empty();
  if (flags.socket.empty()) flags.socket = client::DefaultSocket();
  if (flags.admin_socket.empty()) {
    flags.admin_socket = AdminSocketOf(flags.socket);
  }
}

absl::StatusOr<std::string> ShowStatus(const Flags& flags) {
  NoteWhatIsHidden(flags);
  return Snapshot(flags, RenderStatus, {});
}

absl::StatusOr<std::string> ShowJobs(const Flags& flags) {
  NoteWhatIsHidden(flags);
  return Snapshot(flags, RenderJobs, {"jobs"});
}

absl::StatusOr<std::string> ShowTop(const Flags& flags) {
  if (flags.json || flags.once || isatty(STDOUT_FILENO) == 0) {
    return ShowStatus(flags);
  }
  NoteWhatIsHidden(flags);
  const auto drawn = [&]() -> absl::StatusOr<std::string> {
    SLUICE_ASSIGN_OR_RETURN(const std::string snapshot, SnapshotJson(flags));
    return RenderStatus(snapshot);
  };
  Interrupts interrupts(/*q_ends=*/true);
  SLUICE_ASSIGN_OR_RETURN(std::string text, drawn());
  std::fputs(kEnter, stdout);
  std::string fault;
  do {
    Show(fault + text);
    auto next = drawn();
    fault = next.ok() ? ""
                      : fmt::format("(no answer: {})\n",
                                    std::string(next.status().message()));
    if (next.ok()) text = *std::move(next);
  } while (interrupts.Wait(absl::Seconds(flags.interval_s)));
  std::fputs(kLeave, stdout);
  return "";
}

absl::StatusOr<std::string> ShowEvents(const Flags& flags) {
  NoteWhatIsHidden(flags);
  std::optional<Interrupts> interrupts;
  if (flags.follow) interrupts.emplace();
  auto snapshot = SnapshotJson(flags);
  SLUICE_RETURN_IF_ERROR(snapshot.status());
  SeenEvents seen;
  while (true) {
    if (snapshot.ok()) {
      SLUICE_ASSIGN_OR_RETURN(
          const std::string lines,
          RenderEventLines(*snapshot, seen, flags.json, absl::Now()));
      std::fputs(lines.c_str(), stdout);
      // A closed pipe ends the command without an error.
      if (std::fflush(stdout) != 0) return "";
    }
    if (!interrupts || !interrupts->Wait(absl::Seconds(flags.interval_s))) {
      return "";
    }
    snapshot = SnapshotJson(flags);
  }
}

int ShowDoctor(const Flags& flags) {
  const auto findings = Examine(ReadFacts({flags.socket, flags.admin_socket}));
  const std::string text =
      flags.json ? RenderDoctorJson(findings) : RenderDoctor(findings);
  std::fputs(text.c_str(), stdout);
  return IsWell(findings) ? 0 : 1;
}

absl::StatusOr<std::string> WriteBundle(const Flags& flags) {
  return MakeSupportBundle({flags.socket, flags.admin_socket},
                           {.out = flags.out,
                            .journal_lines = flags.journal_lines,
                            .json = flags.json});
}

absl::StatusOr<std::string> Measure(const Flags& flags) {
  return MeasureBandwidth({.socket = flags.socket,
                           .admin_socket = flags.admin_socket,
                           .seconds = flags.seconds,
                           .beside_jobs = flags.beside_jobs,
                           .json = flags.json,
                           .out = flags.out,
                           .keep = flags.keep});
}

absl::StatusOr<std::string> Forget(const Flags& flags) {
  return ForgetMeasured(flags.admin_socket, flags.json);
}

absl::StatusOr<std::string> ShowBandwidth(const Flags& flags) {
  return Snapshot(flags, RenderBandwidth, {"links", "measured_links"});
}

absl::StatusOr<std::string> ShowBudgets(const Flags& flags) {
  NoteWhatIsHidden(flags);
  return Snapshot(flags, RenderBudgets,
                  {"limits", "reservations", "budgets", "quotas"});
}

absl::StatusOr<std::string> ChangeBudget(const Flags& flags) {
  if (flags.user.empty() == flags.job.empty()) {
    return absl::InvalidArgumentError(
        "whose budget? give either --user or --job");
  }
  if (flags.user.empty() && !flags.cgroup.empty()) {
    return absl::InvalidArgumentError("--cgroup is of a user: give --user too");
  }
  if (flags.gpu.empty() && flags.host.empty()) {
    return absl::InvalidArgumentError(
        "which limit? give --gpu, --host or both, such as --gpu 40GiB");
  }
  BudgetTarget target = {.cgroup = flags.cgroup, .job = flags.job};
  if (!flags.user.empty()) {
    SLUICE_ASSIGN_OR_RETURN(target.uid, UserId(flags.user));
  }
  BudgetLimits limits;
  SLUICE_ASSIGN_OR_RETURN(limits.gpu, Limit("--gpu", flags.gpu));
  SLUICE_ASSIGN_OR_RETURN(limits.host, Limit("--host", flags.host));
  SLUICE_ASSIGN_OR_RETURN(const BudgetLimits now,
                          SetBudget(flags.admin_socket, target, limits));
  if (flags.json) {
    return JsonLine(json{{"job", NullIfEmpty(flags.job)},
                         {"uid", NumberOrNull(target.uid)},
                         {"cgroup", NullIfEmpty(flags.cgroup)},
                         {"gpu_limit_bytes", LimitJson(now.gpu)},
                         {"host_limit_bytes", LimitJson(now.host)}});
  }
  return fmt::format("{} {}: GPU memory {}, host memory {}\n",
                     target.uid ? "user" : "job",
                     target.uid ? flags.user : flags.job,
                     OptionalLimitText(now.gpu), OptionalLimitText(now.host));
}

absl::StatusOr<std::string> ReserveMemory(const Flags& flags) {
  if (flags.pool_gpu.has_value() == flags.pool_numa.has_value()) {
    return absl::InvalidArgumentError(
        "memory of which pool? give either --gpu or --numa, and its number");
  }
  Reservation asked = {
      .cgroup = flags.cgroup, .gpu = flags.pool_gpu, .numa = flags.pool_numa};
  SLUICE_ASSIGN_OR_RETURN(asked.uid, UserId(flags.user));
  SLUICE_ASSIGN_OR_RETURN(asked.bytes,
                          SizeOr("none", "--memory", flags.memory));
  SLUICE_RETURN_IF_ERROR(Reserve(flags.admin_socket, asked));
  const char* const pool = asked.gpu ? "gpu" : "numa";
  const uint32_t index = asked.gpu ? *asked.gpu : *asked.numa;
  if (flags.json) {
    return JsonLine(json{{"pool", pool},
                         {"index", index},
                         {"uid", asked.uid},
                         {"cgroup", NullIfEmpty(flags.cgroup)},
                         {"bytes", asked.bytes.count()}});
  }
  return fmt::format(
      "{} {}: {} reserved for user {}\n", pool, index,
      asked.bytes > Bytes(0) ? FormatBytes(asked.bytes) : "nothing is",
      flags.user);
}

absl::StatusOr<std::string> EvictJob(const Flags& flags) {
  Eviction eviction = {
      .job = flags.job, .kill = flags.kill, .reason = flags.reason};
  if (!flags.user.empty()) {
    SLUICE_ASSIGN_OR_RETURN(eviction.uid, UserId(flags.user));
  }
  const auto evicted = Evict(flags.admin_socket, eviction);
  if (absl::IsNotFound(evicted.status())) {
    std::fputs(StillHeld(flags).c_str(), stderr);
  }
  SLUICE_RETURN_IF_ERROR(evicted.status());
  if (flags.json) {
    return JsonLine(json{{"job", flags.job},
                         {"sessions", evicted->sessions},
                         {"processes", NumberOrNull(evicted->processes)}});
  }
  std::string text =
      fmt::format("job {}: {} session{} ended", flags.job, evicted->sessions,
                  evicted->sessions == 1 ? "" : "s");
  if (!flags.kill) return text + "\n";
  text += evicted->processes
              ? fmt::format(", {} process{} killed\n", *evicted->processes,
                            *evicted->processes == 1 ? "" : "es")
              : ", processes killed\n";
  return text + StillHeld(flags);
}

absl::StatusOr<std::string> DrainNode(const Flags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const uint32_t ranks,
                          Drain(flags.admin_socket, flags.reason));
  if (flags.json) return JsonLine(json{{"drained", true}, {"ranks", ranks}});
  return fmt::format(
      "the node is drained: nothing new is granted; {} rank{} attached still\n",
      ranks, ranks == 1 ? " is" : "s are");
}

absl::StatusOr<std::string> UndrainNode(const Flags& flags) {
  SLUICE_RETURN_IF_ERROR(Undrain(flags.admin_socket));
  if (flags.json) return JsonLine(json{{"drained", false}});
  return "the node is not drained any more\n";
}

absl::StatusOr<std::string> ShowPlan(const Flags& flags) {
  if (flags.plan.find_first_not_of("0123456789") != std::string::npos) {
    return absl::InvalidArgumentError(
        fmt::format("plan '{}' is not a number: sluicectl status lists the "
                    "plans",
                    Printable(flags.plan)));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto status,
                          client::QueryNode(flags.socket, flags.plan));
  return flags.json ? plan::Encode(*status.plan) + "\n"
                    : RenderPlan(*status.plan, flags.explain);
}

}  // namespace sluice::ctl
