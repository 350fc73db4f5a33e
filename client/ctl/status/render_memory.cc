#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "client/ctl/status/render.h"
#include "client/ctl/text/format.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

// Such memory may be more than the pool lacks, because the pool's spare memory
// is used first.
std::string RanksOutside(const json& node) {
  std::string text;
  for (const json& job : node.at("jobs")) {
    for (const json& rank : job.at("ranks")) {
      const json held = rank.value("outside_bytes", json());
      if (held.is_null() || held.get<int64_t>() == 0) continue;
      text += fmt::format("gpu {}: {} are outside the lease of rank {} of {}\n",
                          Number(rank, "gpu"), Size(held.get<int64_t>()),
                          Number(rank, "rank"), Printable(Text(job, "name")));
    }
  }
  return text;
}

// Formats "root, 3 min ago" or "configuration".
std::string SetByText(const json& limit) {
  const std::string by = Text(limit, "set_by");
  return by == "live" ? ByWhom(limit) : by;
}

std::string LimitText(int64_t bytes) {
  return bytes < 0 ? "unlimited" : Size(bytes);
}

std::string LimitLines(const json& node) {
  Table table({"LIMIT OF", ">GPU LIMIT", ">HOST LIMIT", "SET BY"});
  for (const json& limit : node.at("limits")) {
    std::string of = Text(limit, "of");
    if (!limit.at("job").is_null()) of += " " + Text(limit, "job");
    if (!limit.at("uid").is_null()) {
      of += fmt::format(" {}", Number(limit, "uid"));
    }
    if (!limit.at("cgroup").is_null()) of += " in " + Text(limit, "cgroup");
    table.Add({of, LimitText(Number(limit, "gpu_limit_bytes")),
               LimitText(Number(limit, "host_limit_bytes")), SetByText(limit)});
  }
  return table.empty() ? "no limit is set\n" : table.Text(kTerminalColumns, 1);
}

std::string UserText(const json& user) {
  const std::string cgroup = Text(user, "cgroup");
  return fmt::format("{}{}{}", Number(user, "uid"),
                     cgroup.empty() ? "" : " in ", cgroup);
}

// Empty if there are none, or the daemon does not report them.
std::string ReservationLines(const json& node) {
  Table table({"RESERVED FOR", "POOL", ">MEMORY", ">NOT USED YET", "SET BY"});
  if (!node.contains("reservations")) return "";
  for (const json& each : node.at("reservations")) {
    table.Add({"user " + UserText(each),
               fmt::format("{} {}", Text(each, "pool"), Number(each, "index")),
               Size(Number(each, "bytes")),
               Size(Number(each, "withheld_bytes")), ByWhom(each)});
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 1);
}

// A line for all users together, then one for each user with a quota in use.
std::string QuotaLines(const json& node) {
  Table table({"QUOTA", "USER", ">USED", ">LIMIT", ">REFUSED"});
  const auto text = [](const json& from, const char* key) {
    const json& value = from.at(key);
    if (value.is_null()) return std::string("shared in turns");
    return value.is_number_float() ? fmt::format("{:.3f}", value.get<double>())
                                   : fmt::format("{}", value.get<int64_t>());
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

}  // namespace

std::string RenderOutside(const json& node) {
  std::string text;
  const std::string holders =
      node.value("held_outside_by", "processes without a session");
  const double age = node.value("held_outside_age_s", json()).is_null()
                         ? 0
                         : node.at("held_outside_age_s").get<double>();
  const auto add = [&](const json& pool, const std::string& name) {
    const auto held = pool.find("held_outside_bytes");
    if (held == pool.end() || held->get<int64_t>() == 0) return;
    if (!pool.value("fault", json()).is_null()) return;
    text +=
        fmt::format("{}: {} are held outside leases, by {}: free when they end",
                    name, Size(held->get<int64_t>()), holders);
    // A lost GPU no longer answers, so its figure is older than the others.
    const json seen = pool.value("held_outside_age_s", json());
    const bool silent = !seen.is_null() && seen.get<double>() > age;
    text += silent ? fmt::format(" (it does not answer; seen {} ago)\n",
                                 Span(seen.get<double>()))
                   : "\n";
  };
  for (const json& gpu : node.at("gpus")) {
    add(gpu, fmt::format("gpu {}", Number(gpu, "index")));
  }
  for (const json& host : node.at("host")) {
    add(host, fmt::format("numa {}", Number(host, "numa")));
  }
  text += RanksOutside(node);
  if (!text.empty()) {
    text = fmt::format("\nHELD OUTSIDE (seen {} ago)\n{}", Span(age), text);
  }
  const std::string holders_of = HolderLines(node);
  return holders_of.empty() ? text
                            : text + "\nHELD WITHOUT A SESSION\n" + holders_of;
}

std::string HolderLines(const json& node) {
  std::string text;
  for (const json& holder : node.value("holders", json::array())) {
    const int64_t pid = Number(holder, "pid");
    text += fmt::format(
        "process {} ({}) of user {} has {} of GPU memory and {} of host memory "
        "until it ends: kill {}\n",
        pid, Printable(Text(holder, "command")), Number(holder, "uid"),
        Size(Number(holder, "gpu_bytes")), Size(Number(holder, "host_bytes")),
        pid);
  }
  return text;
}

std::string HostKind(const json& node) {
  const json kind = node.value("host_memory", json());
  if (kind.is_null()) return "";
  const std::string why = Text(kind, "why");
  return ", " + Text(kind, "kind") +
         (why.empty() ? "" : fmt::format(" ({})", Printable(why)));
}

std::string BudgetLines(const json& node) {
  Table table({">USER", "CGROUP", "JOB", ">GPU USED", ">GPU LIMIT",
               ">HOST USED", ">HOST LIMIT"});
  for (const json& line : node.at("budgets")) {
    table.Add({fmt::format("{}", Number(line, "uid")), Text(line, "cgroup"),
               line.at("job").is_null() ? "(all)" : Text(line, "job"),
               Size(Number(line, "gpu_used_bytes")),
               LimitText(Number(line, "gpu_limit_bytes")),
               Size(Number(line, "host_used_bytes")),
               LimitText(Number(line, "host_limit_bytes"))});
  }
  return LimitLines(node) + ReservationLines(node) + "\n" +
         (table.empty() ? "nobody holds memory\n"
                        : table.Text(kTerminalColumns, 3)) +
         RenderOutside(node) + "\n" + QuotaLines(node);
}

}  // namespace sluice::ctl
