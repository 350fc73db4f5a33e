#include "client/ctl/status/render_budgets.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "client/ctl/status/render_memory.h"
#include "client/ctl/text/fields.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/table.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

// Formats "root, 3 min ago" or "configuration".
std::string SetByText(const json& limit) {
  if (Text(limit, "set_by") != "live") return Text(limit, "set_by");
  const std::string who = Text(limit, "by");
  return fmt::format("{}, {} ago", who.empty() ? "an administrator" : who,
                     Span(limit.at("age_s").get<double>()));
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

// Formats the reservations; empty if there are none, or the daemon is too old
// to report them.
std::string ReservationLines(const json& node) {
  Table table({"RESERVED FOR", "POOL", ">MEMORY", ">NOT USED YET", "SET BY"});
  if (!node.contains("reservations")) return "";
  for (const json& each : node.at("reservations")) {
    const std::string who = Text(each, "by");
    table.Add({"user " + UserText(each),
               fmt::format("{} {}", Text(each, "pool"), Number(each, "index")),
               Size(Number(each, "bytes")),
               Size(Number(each, "withheld_bytes")),
               fmt::format("{}, {} ago", who.empty() ? "an administrator" : who,
                           Span(each.at("age_s").get<double>()))});
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 1);
}

// Formats a line for all users together, then one for each user with a quota in
// use.
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
