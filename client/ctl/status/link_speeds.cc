#include "client/ctl/status/link_speeds.h"

#include <fmt/format.h>

#include <set>

#include "client/ctl/text/format.h"
#include "client/ctl/text/table.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

double SpeedIn(const json& link, const char* key) {
  return link.at(key).is_null() ? 0 : link.at(key).get<double>();
}

std::set<std::string> NamesOf(const json& measured) {
  std::set<std::string> names;
  if (measured.is_null()) return names;
  for (const json& link : measured.at("links"))
    names.insert(Text(link, "name"));
  return names;
}

std::string FromText(const json& link, const json& measured, bool is_measured) {
  const json from = link.value("speed_from", json());
  if (from == "measured") return "measured by " + ByWhom(measured);
  if (from.is_null()) return "-";
  return from.get<std::string>() +
         (is_measured ? ", not what was measured" : "");
}

// States on one line whether stored speeds are not in use; empty if all are.
std::string NotHeld(const json& node, const json& measured) {
  if (measured.is_null()) return "";
  if (measured.at("waits").get<bool>()) {
    return fmt::format(
        "What was measured by {} waits until no rank is attached, or the "
        "daemon is started again\n",
        Printable(ByWhom(measured)));
  }
  std::set<std::string> unused = NamesOf(measured);
  for (const json& link : node.at("links")) {
    if (!link.value("speed_from", json()).is_null()) {
      unused.erase(Text(link, "name"));
    }
  }
  if (unused.empty()) return "";
  return fmt::format(
      "What was measured by {} is not used, since it does not fit this node: "
      "measure again, or sluicectl bandwidth forget\n",
      Printable(ByWhom(measured)));
}

}  // namespace

std::string Speed(double bytes_per_second) {
  if (bytes_per_second <= 0) return "-";
  return bytes_per_second >= 1e9
             ? fmt::format("{:.2f} GB/s", bytes_per_second / 1e9)
             : fmt::format("{:.1f} MB/s", bytes_per_second / 1e6);
}

std::string RenderLinks(const json& node) {
  Table table({"LINK", "ON", ">TO GPU", ">TO HOST", ">TOGETHER", "FROM"});
  const json measured = node.value("measured_links", json());
  const std::set<std::string> names = NamesOf(measured);
  for (const json& link : node.at("links")) {
    const std::string name = Text(link, "name");
    table.Add({name, link.at("parent").is_null() ? "-" : Text(link, "parent"),
               Speed(SpeedIn(link, "h2d_bytes_per_second")),
               Speed(SpeedIn(link, "d2h_bytes_per_second")),
               Speed(SpeedIn(link, "both_bytes_per_second")),
               FromText(link, measured, names.contains(name))});
  }
  return table.Text(kTerminalColumns, 1) + NotHeld(node, measured);
}

std::string RenderMeasuredLinks(const json& node) {
  return node.value("measured_links", json()).is_null()
             ? ""
             : "\n" + RenderLinks(node);
}

}  // namespace sluice::ctl
