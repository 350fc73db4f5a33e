#include "client/ctl/commands.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/ctl/admin/admin.h"
#include "client/ctl/bandwidth/bandwidth.h"
#include "client/ctl/bundle/support_bundle.h"
#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/facts.h"
#include "client/ctl/live.h"
#include "client/ctl/status/render.h"
#include "client/ctl/text/format.h"
#include "client/session/session.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/units.h"
#include "proto/plan/codec.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;
using Renderer = absl::StatusOr<std::string> (*)(const std::string&);

std::string SessionSocket(const Flags& flags) {
  return flags.socket.empty() ? client::DefaultSocket() : flags.socket;
}

std::string AdminSocket(const Flags& flags) {
  return flags.admin_socket.empty() ? AdminSocketOf(SessionSocket(flags))
                                    : flags.admin_socket;
}

bool AsAdministrator(const Flags& flags) {
  return flags.admin || !flags.admin_socket.empty();
}

absl::StatusOr<std::string> SnapshotJson(const Flags& flags) {
  if (AsAdministrator(flags)) return ReadStatus(AdminSocket(flags));
  SLUICE_ASSIGN_OR_RETURN(auto status, client::QueryNode(flags.socket));
  return std::move(status.json);
}

// Prints a note if --admin would show this user more. The daemon's own user
// sees everything without it, unless that user is root.
void NoteWhatIsHidden(const Flags& flags) {
  const std::string admin = AdminSocket(flags);
  struct stat info;
  if (AsAdministrator(flags) || stat(admin.c_str(), &info) != 0 ||
      access(admin.c_str(), R_OK | W_OK) != 0 ||
      (info.st_uid == geteuid() && info.st_uid != 0)) {
    return;
  }
  std::fputs(
      "note: other users' jobs, limits and events are not shown: "
      "sluicectl --admin shows them too\n",
      stderr);
}

// Formats the snapshot, or with --json its parts `keys`.
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

json NullIfEmpty(const std::string& text) {
  return text.empty() ? json() : json(text);
}

std::string OptionalLimitText(const std::optional<Bytes>& limit) {
  return !limit || *limit == Bytes(0) ? "unlimited" : FormatBytes(*limit);
}

// Lists processes without a session that still have memory, after at most a
// second in which the memory of ended processes returns.
std::string StillHeld(const Flags& flags) {
  constexpr absl::Duration kPause = absl::Milliseconds(100);
  for (int i = 0; i < 10; ++i) {
    bool returning = false;
    const auto json = ReadStatus(AdminSocket(flags));
    const auto lines = json.ok() ? RenderHolders(*json, returning) : json;
    if (!lines.ok() || !lines->empty() || !returning) {
      return lines.value_or("");
    }
    absl::SleepFor(kPause);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> ShowStatus(const Flags& flags) {
  NoteWhatIsHidden(flags);
  return Snapshot(flags, RenderStatus, {});
}

absl::StatusOr<std::string> ShowJobs(const Flags& flags) {
  NoteWhatIsHidden(flags);
  return Snapshot(flags, RenderJobs, {"jobs"});
}

absl::StatusOr<std::string> ShowTop(const Flags& flags) {
  if (flags.json) return ShowStatus(flags);
  NoteWhatIsHidden(flags);
  SLUICE_RETURN_IF_ERROR(Draw([&] { return SnapshotJson(flags); },
                              {.once = flags.once,
                               .interval = absl::Seconds(flags.interval_s),
                               .draw = RenderStatus}));
  return "";
}

absl::StatusOr<std::string> ShowEvents(const Flags& flags) {
  NoteWhatIsHidden(flags);
  SLUICE_RETURN_IF_ERROR(
      PrintEvents([&] { return SnapshotJson(flags); },
                  {.follow = flags.follow,
                   .as_json = flags.json,
                   .interval = absl::Seconds(flags.interval_s)}));
  return "";
}

int ShowDoctor(const Flags& flags) {
  const auto findings =
      Examine(ReadFacts({SessionSocket(flags), AdminSocket(flags)}));
  std::fputs((flags.json ? RenderDoctorJson(findings) : RenderDoctor(findings))
                 .c_str(),
             stdout);
  return IsWell(findings) ? 0 : 1;
}

absl::StatusOr<std::string> WriteBundle(const Flags& flags) {
  return MakeSupportBundle({SessionSocket(flags), AdminSocket(flags)},
                           {.out = flags.out,
                            .journal_lines = flags.journal_lines,
                            .json = flags.json});
}

absl::StatusOr<std::string> Measure(const Flags& flags) {
  return MeasureBandwidth({.socket = SessionSocket(flags),
                           .admin_socket = AdminSocket(flags),
                           .seconds = flags.seconds,
                           .beside_jobs = flags.beside_jobs,
                           .json = flags.json,
                           .out = flags.out,
                           .keep = flags.keep});
}

absl::StatusOr<std::string> Forget(const Flags& flags) {
  return ForgetMeasured(AdminSocket(flags), flags.json);
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
                          SetBudget(AdminSocket(flags), target, limits));
  if (flags.json) {
    return JsonLine(json{{"job", target.uid ? json() : json(flags.job)},
                         {"uid", target.uid ? json(*target.uid) : json()},
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
  SLUICE_RETURN_IF_ERROR(Reserve(AdminSocket(flags), asked));
  if (flags.json) {
    return JsonLine(json{{"pool", asked.gpu ? "gpu" : "numa"},
                         {"index", asked.gpu ? *asked.gpu : *asked.numa},
                         {"uid", asked.uid},
                         {"cgroup", NullIfEmpty(flags.cgroup)},
                         {"bytes", asked.bytes.count()}});
  }
  return fmt::format(
      "{} {}: {} reserved for user {}\n", asked.gpu ? "gpu" : "numa",
      asked.gpu ? *asked.gpu : *asked.numa,
      asked.bytes > Bytes(0) ? FormatBytes(asked.bytes) : "nothing is",
      flags.user);
}

absl::StatusOr<std::string> EvictJob(const Flags& flags) {
  Eviction eviction = {
      .job = flags.job, .kill = flags.kill, .reason = flags.reason};
  if (!flags.user.empty()) {
    SLUICE_ASSIGN_OR_RETURN(eviction.uid, UserId(flags.user));
  }
  const auto evicted = Evict(AdminSocket(flags), eviction);
  if (absl::IsNotFound(evicted.status())) {
    std::fputs(StillHeld(flags).c_str(), stderr);
  }
  SLUICE_RETURN_IF_ERROR(evicted.status());
  if (flags.json) {
    return JsonLine(
        json{{"job", flags.job},
             {"sessions", evicted->sessions},
             {"processes",
              evicted->processes ? json(*evicted->processes) : json()}});
  }
  std::string killed;
  if (flags.kill && evicted->processes) {
    killed = fmt::format(", {} process{} killed", *evicted->processes,
                         *evicted->processes == 1 ? "" : "es");
  } else if (flags.kill) {
    killed = ", processes killed";
  }
  return fmt::format("job {}: {} session{} ended{}\n{}", flags.job,
                     evicted->sessions, evicted->sessions == 1 ? "" : "s",
                     killed, flags.kill ? StillHeld(flags) : "");
}

absl::StatusOr<std::string> DrainNode(const Flags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const uint32_t ranks,
                          Drain(AdminSocket(flags), flags.reason));
  if (flags.json) return JsonLine(json{{"drained", true}, {"ranks", ranks}});
  return fmt::format(
      "the node is drained: nothing new is granted; {} rank{} attached still\n",
      ranks, ranks == 1 ? " is" : "s are");
}

absl::StatusOr<std::string> UndrainNode(const Flags& flags) {
  SLUICE_RETURN_IF_ERROR(Undrain(AdminSocket(flags)));
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
