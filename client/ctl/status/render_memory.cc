#include "client/ctl/status/render_memory.h"

#include <fmt/format.h>

#include "client/ctl/text/fields.h"
#include "client/ctl/text/format.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

// Formats a line for each rank that reported memory outside its lease. Such
// memory may be more than the pool lacks, because the pool's spare memory is
// used first.
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

}  // namespace

// Formats a line for each pool with memory held outside leases; empty from a
// daemon that does not report it.
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

}  // namespace sluice::ctl
