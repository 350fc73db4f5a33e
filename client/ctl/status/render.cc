#include "client/ctl/status/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "client/ctl/text/format.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

constexpr size_t kEventsShown = 8;

// Formats a line for each process that holds memory of the pools but has no
// session; returns "" if the daemon reports no such processes.
std::string HolderLines(const json& node) {
  std::string text;
  for (const json& holder : node.value("holders", json::array())) {
    const int64_t pid = Number(holder, "pid");
    text += fmt::format(
        "process {} ({}) of user {} has {} of GPU memory and {} of host memory "
        "until it ends: kill {}\n",
        pid, Printable(Text(holder, "command")), Number(holder, "uid"),
        SizeOf(holder, "gpu_bytes"), SizeOf(holder, "host_bytes"), pid);
  }
  return text;
}

// Formats a section with the memory that is held outside leases, by pool and as
// ranks report it, and a section with its holders. Returns "" without either.
std::string RenderOutside(const json& node) {
  std::string text;
  const std::string holders =
      node.value("held_outside_by", "processes without a session");
  const json seen_at = node.value("held_outside_age_s", json());
  const double age = seen_at.is_null() ? 0 : seen_at.get<double>();
  const auto add = [&](const json& pool, const std::string& name) {
    const int64_t held = pool.value("held_outside_bytes", int64_t{0});
    if (held == 0 || !pool.value("fault", json()).is_null()) return;
    text +=
        fmt::format("{}: {} are held outside leases, by {}: free when they end",
                    name, Size(held), holders);
    // A lost GPU no longer answers, so its figure is older than other GPUs'.
    const json seen = pool.value("held_outside_age_s", json());
    if (!seen.is_null() && seen.get<double>() > age) {
      text += fmt::format(" (it does not answer; seen {} ago)",
                          Span(seen.get<double>()));
    }
    text += "\n";
  };
  for (const json& gpu : node.at("gpus")) {
    add(gpu, fmt::format("gpu {}", Number(gpu, "index")));
  }
  for (const json& host : node.at("host")) {
    add(host, fmt::format("numa {}", Number(host, "numa")));
  }
  // Ranks may report more than the pool's row shows, because memory outside
  // leases takes the pool's spare memory first.
  for (const json& job : node.at("jobs")) {
    for (const json& rank : job.at("ranks")) {
      const json held = rank.value("outside_bytes", json());
      if (held.is_null() || held == 0) continue;
      text += fmt::format("gpu {}: {} are outside the lease of rank {} of {}\n",
                          Number(rank, "gpu"), Size(held.get<int64_t>()),
                          Number(rank, "rank"), Printable(Text(job, "name")));
    }
  }
  if (!text.empty()) {
    text = fmt::format("\nHELD OUTSIDE (seen {} ago)\n{}", Span(age), text);
  }
  const std::string lines = HolderLines(node);
  return lines.empty() ? text : text + "\nHELD WITHOUT A SESSION\n" + lines;
}

// Formats ", HOST_NUMA"; empty on sim, or from a daemon that does not state it.
std::string HostKind(const json& node) {
  const json kind = node.value("host_memory", json());
  if (kind.is_null()) return "";
  const std::string why = Printable(Text(kind, "why"));
  return ", " + Text(kind, "kind") + (why.empty() ? "" : " (" + why + ")");
}

std::string LimitOf(const json& from, const char* key) {
  return from.at(key).is_null() ? "unlimited" : SizeOf(from, key);
}

std::string LimitLines(const json& node) {
  Table table({"LIMIT OF", ">GPU LIMIT", ">HOST LIMIT", "SET BY"});
  for (const json& limit : node.at("limits")) {
    std::string of = Text(limit, "of");
    if (!limit.at("job").is_null()) of += " " + Text(limit, "job");
    if (!limit.at("uid").is_null()) {
      of += " " + std::to_string(Number(limit, "uid"));
    }
    if (!limit.at("cgroup").is_null()) of += " in " + Text(limit, "cgroup");
    const std::string by = Text(limit, "set_by");
    table.Add({of, LimitOf(limit, "gpu_limit_bytes"),
               LimitOf(limit, "host_limit_bytes"),
               by == "live" ? ByWhom(limit) : by});
  }
  return table.empty() ? "no limit is set\n" : table.Text(kTerminalColumns, 1);
}

std::string UserText(const json& user) {
  const std::string cgroup = Text(user, "cgroup");
  return std::to_string(Number(user, "uid")) +
         (cgroup.empty() ? "" : " in " + cgroup);
}

// Returns "" if there are no reservations, or the daemon does not report them.
std::string ReservationLines(const json& node) {
  Table table({"RESERVED FOR", "POOL", ">MEMORY", ">NOT USED YET", "SET BY"});
  if (!node.contains("reservations")) return "";
  for (const json& each : node.at("reservations")) {
    table.Add({"user " + UserText(each),
               fmt::format("{} {}", Text(each, "pool"), Number(each, "index")),
               SizeOf(each, "bytes"), SizeOf(each, "withheld_bytes"),
               ByWhom(each)});
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 1);
}

// For each quota, formats a line for all users together, then one per user.
std::string QuotaLines(const json& node) {
  Table table({"QUOTA", "USER", ">USED", ">LIMIT", ">REFUSED"});
  const auto text = [](const json& from, const char* key) {
    const json& value = from.at(key);
    return value.is_null() ? "shared in turns"
           : value.is_number_float()
               ? fmt::format("{:.3f}", value.get<double>())
               : std::to_string(value.get<int64_t>());
  };
  for (const json& quota : node.at("quotas")) {
    table.Add({Text(quota, "of"), "(all)", text(quota, "used"),
               text(quota, "limit"), text(quota, "refused")});
    for (const json& user : quota.at("users")) {
      table.Add({"", UserText(user), text(user, "used"),
                 text(quota, "limit_per_user"), ""});
    }
  }
  return table.Text(kTerminalColumns, 1);
}

std::string BudgetLines(const json& node) {
  Table table({">USER", "CGROUP", "JOB", ">GPU USED", ">GPU LIMIT",
               ">HOST USED", ">HOST LIMIT"});
  for (const json& line : node.at("budgets")) {
    table.Add({std::to_string(Number(line, "uid")), Text(line, "cgroup"),
               line.at("job").is_null() ? "(all)" : Text(line, "job"),
               SizeOf(line, "gpu_used_bytes"), LimitOf(line, "gpu_limit_bytes"),
               SizeOf(line, "host_used_bytes"),
               LimitOf(line, "host_limit_bytes")});
  }
  return LimitLines(node) + ReservationLines(node) + "\n" +
         (table.empty() ? "nobody holds memory\n"
                        : table.Text(kTerminalColumns, 3)) +
         RenderOutside(node) + "\n" + QuotaLines(node);
}

std::string RenderHeader(const json& node) {
  return fmt::format(
      "sluiced {} on {}  driver {}, up {}, generation {}, {} session{}\n\n",
      Text(node, "version"), Text(node, "hostname"), Text(node, "driver"),
      SpanOf(node, "uptime_s"), node.at("generation").get<uint64_t>(),
      Number(node, "sessions"), Number(node, "sessions") == 1 ? "" : "s");
}

// Returns "" if the node is not drained, or its daemon does not report it.
std::string RenderDrain(const json& node) {
  const json drained = node.value("drained", json());
  if (drained.is_null()) return "";
  const std::string by = Text(drained, "by"), reason = Text(drained, "reason");
  return fmt::format(
      "DRAINED by {} {} ago{}: nothing new is granted until sluicectl "
      "undrain\n\n",
      by.empty() ? "an administrator" : Printable(by), SpanOf(drained, "age_s"),
      reason.empty() ? "" : " (" + Printable(reason) + ")");
}

// Returns "" if metrics are served over TCP or switched off.
std::string RenderHttp(const json& node) {
  const json http = node.value("http", json());
  if (http.is_null() || http.at("fault").is_null()) return "";
  return fmt::format("NO METRICS over TCP: {}\n\n",
                     Printable(Text(http, "fault")));
}

// Returns the memory that will be free when the processes that may map it end.
int64_t Returning(const json& pool) {
  return Number(pool, "quarantined_bytes") +
         pool.value("lingering_bytes", int64_t{0});
}

void AddPool(const json& pool, const std::string& name, std::string what,
             Table& table) {
  const int64_t reserved = pool.value("reserved_bytes", int64_t{0});
  const int64_t making = pool.value("making_bytes", int64_t{0});
  if (making > 0) what += fmt::format(", {} still to be made", Size(making));
  if (reserved > 0) what += fmt::format(", {} reserved", Size(reserved));
  const int64_t total = Number(pool, "total_bytes");
  const int64_t free = Number(pool, "free_bytes");
  table.Add({name, Size(total), SizeOf(pool, "leased_bytes"), Size(free),
             Size(Returning(pool)), Bar(total - free, total), what});
}

std::string RenderPools(const json& node) {
  Table table(
      {"POOL", ">TOTAL", ">LEASED", ">FREE", ">RETURNING", "USE", "WHAT"});
  for (const json& gpu : node.at("gpus")) {
    AddPool(gpu, fmt::format("gpu {}", Number(gpu, "index")),
            gpu.value("fault", json()).is_null()
                ? fmt::format("{} on {}", Text(gpu, "name"), Text(gpu, "link"))
                : Text(gpu, "fault"),
            table);
  }
  for (const json& host : node.at("host")) {
    AddPool(host, fmt::format("numa {}", Number(host, "numa")),
            "pinned host memory" + HostKind(node), table);
  }
  return table.Text(kTerminalColumns, 1);
}

// Formats "0/2".
std::string OfWorld(const json& rank, const json& job) {
  return fmt::format("{}/{}", Number(rank, "rank"), Number(job, "world_size"));
}

std::string RenderRanks(const json& node) {
  Table table({"JOB", ">RANK", ">PID", ">GPU", ">GPU MEMORY", ">HOST MEMORY",
               ">STEP", ">LOSS", ">TOKENS/S", ">STALLED", ">GRANT WAITS"});
  for (const json& job : node.at("jobs")) {
    for (const json& rank : job.at("ranks")) {
      table.Add({Text(job, "name"), OfWorld(rank, job),
                 fmt::format("{}{}", Number(rank, "pid"),
                             rank.at("closed").get<bool>() ? " ends" : ""),
                 std::to_string(Number(rank, "gpu")), SizeOf(rank, "gpu_bytes"),
                 SizeOf(rank, "host_bytes"), Optional(rank.at("step"), Count),
                 Optional(rank.at("loss"), Loss),
                 Optional(rank.at("tokens_per_second"), Count),
                 SpanOf(rank, "stall_seconds"),
                 SpanOf(rank, "grant_wait_seconds")});
    }
  }
  return table.empty() ? "no jobs\n" : table.Text(kTerminalColumns, 2);
}

// Formats "2.35 GB/s, 14.9 GiB a step: promised".
std::string CopiesText(const json& copies, const std::string& direction) {
  if (copies.is_null()) return "-";
  const std::string speed = direction + "_bytes_per_second";
  const double rate = copies.at(speed).get<double>();
  if (rate <= 0) return "-";
  return fmt::format(
      "{:.2f} GB/s, {} a step: {}", rate / 1e9,
      Size(copies.value(direction + "_bytes_per_step", int64_t{-1})),
      copies.at("promised_" + speed).get<double>() > 0 ? "promised"
                                                       : "fair share");
}

// Formats "12 to, 3 from: 0.41 s".
std::string LateText(const json& late) {
  if (late.is_null()) return "-";  // the daemon is older
  const auto h2d = late.at("h2d_copies").get<uint64_t>();
  const auto d2h = late.at("d2h_copies").get<uint64_t>();
  if (h2d + d2h == 0) return "-";
  return fmt::format("{} to, {} from: {}", h2d, d2h,
                     Span(late.at("h2d_seconds").get<double>() +
                          late.at("d2h_seconds").get<double>()));
}

std::set<std::string> NamesOf(const json& measured) {
  std::set<std::string> names;
  if (measured.is_null()) return names;
  for (const json& link : measured.at("links")) {
    names.insert(Text(link, "name"));
  }
  return names;
}

// Returns one line if stored speeds are not in use, else "".
std::string NotHeld(const json& measured, bool all_used) {
  if (measured.is_null()) return "";
  if (measured.at("waits").get<bool>()) {
    return fmt::format(
        "What was measured by {} waits until no rank is attached, or the "
        "daemon is started again\n",
        Printable(ByWhom(measured)));
  }
  if (all_used) return "";
  return fmt::format(
      "What was measured by {} is not used, since it does not fit this node: "
      "measure again, or sluicectl bandwidth forget\n",
      Printable(ByWhom(measured)));
}

std::string RenderCopies(const json& node) {
  Table table({"COPIES OF", ">RANK", ">WEIGHT", "LATE", "PLAN TO THE GPU",
               "PLAN FROM THE GPU"});
  for (const json& job : node.at("jobs")) {
    for (const json& rank : job.at("ranks")) {
      const double weight = rank.value("weight", 1.0);
      const json plan = rank.value("plan_copies", json());
      const std::string late = LateText(rank.value("late", json()));
      if (weight == 1 && plan.is_null() && late == "-") continue;
      table.Add({Text(job, "name"), OfWorld(rank, job),
                 fmt::format("{:g}", weight), late, CopiesText(plan, "h2d"),
                 CopiesText(plan, "d2h")});
    }
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 2);
}

std::string JobLines(const json& node) {
  Table table({"JOB", ">USER", ">RANKS", ">GPU MEMORY", ">HOST MEMORY", ">STEP",
               ">LOSS", ">TOKENS/S", ">PLAN"});
  for (const json& job : node.at("jobs")) {
    int64_t gpu = 0, host = 0;
    double speed = 0;
    json step, loss;
    for (const json& rank : job.at("ranks")) {
      gpu += Number(rank, "gpu_bytes");
      host += Number(rank, "host_bytes");
      if (!rank.at("step").is_null()) step = rank.at("step");
      if (!rank.at("loss").is_null()) loss = rank.at("loss");
      if (const json& own = rank.at("tokens_per_second"); !own.is_null()) {
        speed += own.get<double>();
      }
    }
    table.Add({Text(job, "name"), std::to_string(Number(job, "uid")),
               fmt::format("{}/{}", job.at("ranks").size(),
                           Number(job, "world_size")),
               Size(gpu), Size(host), Optional(step, Count),
               Optional(loss, Loss), speed > 0 ? Count(speed) : "-",
               Optional(job.at("plan_id"), Count)});
  }
  return table.empty() ? "no jobs\n" : table.Text(kTerminalColumns, 1);
}

std::string RenderPlans(const json& node) {
  Table table({">PLAN", "JOB", ">RANKS", ">ALPHA", "LIMITED BY", ">HOST MEMORY",
               ">SOLVED IN"});
  for (const json& plan : node.at("plans")) {
    double least = 1;
    int64_t host = 0;
    std::string limit = "-";
    for (const json& rank : plan.at("ranks")) {
      const double alpha = rank.at("alpha").get<double>();
      if (alpha <= least) limit = Text(rank, "alpha_limited_by");
      least = std::min(least, alpha);
      host += Number(rank, "host_bytes");
    }
    std::string alpha = fmt::format("{:.3f}", least);
    if (!Text(plan, "infeasible").empty()) {
      // The reason is a sentence, too wide for a column.
      alpha = "-";
      limit = fmt::format("does not fit: sluicectl plan show {}",
                          Number(plan, "id"));
    }
    table.Add({std::to_string(Number(plan, "id")), Text(plan, "job"),
               std::to_string(plan.at("ranks").size()), alpha, limit,
               Size(host), SpanOf(plan, "seconds")});
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 1);
}

std::string ProgressOf(const json& planning) {
  const std::string state = Text(planning, "state");
  if (state == "collecting") return "waits for profiles";
  if (state == "queued") return "waits for another plan";
  if (state == "changing") {
    return fmt::format("plan {} at the next step", Number(planning, "plan_id"));
  }
  if (state == "waiting") {
    const std::vector<std::string> others = planning.at("waiting_for");
    return planning.at("plan_id").is_null()
               ? "waits for host memory to calibrate in"
               : fmt::format("plan {} waits for host memory of {}",
                             Number(planning, "plan_id"),
                             fmt::join(others, ", "));
  }
  const json& progress = planning.at("progress");
  if (progress.is_null()) return "starts";
  return fmt::format("{} of {} segments; {}: {}, peak {}, at least {}",
                     Number(progress, "segments_done"),
                     Number(progress, "segments"), Text(progress, "segment"),
                     Text(progress, "arm"), SizeOf(progress, "peak_bytes"),
                     SizeOf(progress, "lower_bound_bytes"));
}

std::string RenderPlanning(const json& node) {
  Table table({"PLANNING", ">RANKS", ">FOR", ">AT MOST", "HOW FAR"});
  for (const json& planning : node.at("planning")) {
    table.Add({Text(planning, "job"),
               fmt::format("{}/{}", Number(planning, "ranks"),
                           Number(planning, "ranks_wanted")),
               Optional(planning.at("elapsed_s"), Span),
               Optional(planning.at("deadline_in_s"), Span),
               ProgressOf(planning)});
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 1);
}

std::string RenderWaiting(const json& node) {
  Table table(
      {"WAITING", ">RANK", ">FOR", "OF", ">SINCE", ">AT MOST", "LACKS"});
  for (const json& lease : node.value("waiting", json::array())) {
    const int64_t in_front = Number(lease, "in_front");
    std::string lacks = Text(lease, "lacks") == "pool"
                            ? "memory there"
                            : "budget of its " + Text(lease, "lacks");
    if (in_front > 0) lacks += fmt::format(", {} in front", in_front);
    table.Add({Text(lease, "job"), std::to_string(Number(lease, "rank")),
               SizeOf(lease, "bytes"),
               fmt::format("{} {}",
                           Text(lease, "pool") == "gpu" ? "GPU" : "NUMA node",
                           Number(lease, "index")),
               SpanOf(lease, "elapsed_s"), SpanOf(lease, "deadline_in_s"),
               lacks});
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 2);
}

std::string RenderEvents(const json& node) {
  const json& events = node.at("events");
  Table table({">AGO", "EVENT", "WHAT"});
  for (size_t i = std::max(events.size(), kEventsShown) - kEventsShown;
       i < events.size(); ++i) {
    table.Add({SpanOf(events[i], "age_s"), Text(events[i], "kind"),
               Text(events[i], "text")});
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 1);
}

std::string LineOf(const json& event, bool as_json, absl::Time now) {
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ",
                       now - absl::Seconds(event.at("age_s").get<double>()),
                       absl::UTCTimeZone());
  if (!as_json) {
    // The ids of session and request as in the daemon's log; null without a
    // session, or from an older daemon.
    const json request = event.value("request", json());
    return fmt::format(
        "{} {:>6} {:<8} {}{}\n", time, event.at("number").get<uint64_t>(),
        Text(event, "kind"), Text(event, "text"),
        request.is_null() ? "" : " (" + request.get<std::string>() + ")");
  }
  json shown = event;
  shown.erase("age_s");
  shown["time"] = time;
  return JsonLine(shown);
}

// Internal: a field is missing or of another type.
absl::StatusOr<std::string> Render(
    const std::string& text,
    const std::function<std::string(const json&)>& render,
    fmt::format_string<const char*> fault =
        "the daemon's snapshot is not what this sluicectl knows ({}): install "
        "the same version of both") {
  try {
    return render(json::parse(text));
  } catch (const json::exception& error) {
    return absl::InternalError(fmt::format(fault, error.what()));
  }
}

absl::StatusOr<std::string> RenderLines(
    const std::string& text,
    const std::function<std::string(const json&)>& render) {
  return Render(text, [&](const json& node) { return Wrapped(render(node)); });
}

}  // namespace

std::string RenderLinks(const json& node) {
  Table table({"LINK", "ON", ">TO GPU", ">TO HOST", ">TOGETHER", "FROM"});
  const json measured = node.value("measured_links", json());
  const std::set<std::string> names = NamesOf(measured);
  std::set<std::string> unused = names;
  for (const json& link : node.at("links")) {
    const std::string name = Text(link, "name");
    const json from = link.value("speed_from", json());
    if (!from.is_null()) unused.erase(name);
    std::string source = from.is_null() ? "-" : from.get<std::string>();
    if (source == "measured") {
      source += " by " + ByWhom(measured);
    } else if (!from.is_null() && names.contains(name)) {
      source += ", not what was measured";
    }
    table.Add({name, link.at("parent").is_null() ? "-" : Text(link, "parent"),
               Optional(link.at("h2d_bytes_per_second"), Speed),
               Optional(link.at("d2h_bytes_per_second"), Speed),
               Optional(link.at("both_bytes_per_second"), Speed), source});
  }
  return table.Text(kTerminalColumns, 1) + NotHeld(measured, unused.empty());
}

std::string RenderMeasuredLinks(const json& node) {
  return node.value("measured_links", json()).is_null()
             ? ""
             : "\n" + RenderLinks(node);
}

absl::StatusOr<std::string> RenderStatus(const std::string& text) {
  return RenderLines(text, [](const json& node) {
    return RenderHeader(node) + RenderDrain(node) + RenderHttp(node) +
           RenderPools(node) + RenderOutside(node) + "\n" + RenderRanks(node) +
           RenderCopies(node) + RenderMeasuredLinks(node) +
           RenderPlanning(node) + RenderWaiting(node) + RenderPlans(node) +
           RenderEvents(node);
  });
}

absl::StatusOr<std::string> RenderJobs(const std::string& text) {
  return RenderLines(text, JobLines);
}

absl::StatusOr<std::string> RenderBandwidth(const std::string& json) {
  return RenderLines(json, RenderLinks);
}

absl::StatusOr<std::string> RenderBudgets(const std::string& text) {
  return RenderLines(text, BudgetLines);
}

absl::StatusOr<std::string> RenderHolders(const std::string& text,
                                          bool& returning) {
  return Render(text, [&](const json& node) {
    returning = false;
    for (const char* const kind : {"gpus", "host"}) {
      for (const json& pool : node.at(kind)) returning |= Returning(pool) > 0;
    }
    return HolderLines(node);
  });
}

absl::StatusOr<std::string> JsonPart(const std::string& text,
                                     const std::vector<std::string>& keys) {
  return Render(text, [&](const json& node) {
    if (keys.empty()) return node.dump() + "\n";
    if (keys.size() == 1) return node.at(keys[0]).dump() + "\n";
    json parts;
    for (const std::string& key : keys) parts[key] = node.at(key);
    return parts.dump() + "\n";
  });
}

absl::StatusOr<std::string> RenderEventLines(const std::string& snapshot,
                                             SeenEvents& seen, bool as_json,
                                             absl::Time now) {
  const auto render = [&](const json& node) {
    std::string lines;
    const auto generation = node.at("generation").get<uint64_t>();
    // The daemon has all events from this number on; missing numbers are other
    // users' events.
    const auto from = node.value("events_from", uint64_t{0});
    if (generation != seen.generation) seen.last = 0;
    seen.generation = generation;
    uint64_t missed =
        seen.last > 0 && from > seen.last + 1 ? from - seen.last - 1 : 0;
    for (const json& event : node.at("events")) {
      const auto number = event.at("number").get<uint64_t>();
      if (missed > 0 && number > seen.last && number < from) --missed;
    }
    if (missed > 0) {
      lines += fmt::format(
          fmt::runtime(as_json ? "{{\"missed\": {}}}\n"
                               : "({} events are not kept any more)\n"),
          missed);
    }
    for (const json& event : node.at("events")) {
      const auto number = event.at("number").get<uint64_t>();
      if (number <= seen.last) continue;
      lines += LineOf(event, as_json, now);
      seen.last = number;
    }
    // Dropped events are reported once.
    if (from > 0) seen.last = std::max(seen.last, from - 1);
    return lines;
  };
  return Render(snapshot, render,
                "sluiced's events are not what this sluicectl knows: {}");
}

}  // namespace sluice::ctl
