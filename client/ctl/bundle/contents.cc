#include "client/ctl/bundle/contents.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

constexpr char kNever[] =
    R"(Never in it: what is in memory, plans and profiles, environment variables.
Names of users, jobs, hosts and cgroups are in it: read it before you send it.
)";

std::string ItemReason(const Item& item) {
  return Printable(std::string(item.text.status().message()));
}

}  // namespace

std::string RenderContents(const std::vector<Item>& items) {
  std::string in, out;
  for (const Item& item : items) {
    if (item.text.ok()) {
      in += fmt::format("  {:<14} {}\n", item.name, item.what);
    } else {
      out += fmt::format("  {:<14} {}: {}\n", item.name, item.what,
                         ItemReason(item));
    }
  }
  return "In it:\n" + in + (out.empty() ? "" : "Left out:\n" + out) + kNever;
}

std::string RenderBundleJson(const std::string& file, size_t bytes,
                             const std::vector<Item>& items) {
  json contents = json::array(), left_out = json::array();
  for (const Item& item : items) {
    json entry = {{"name", item.name}, {"what", item.what}};
    if (!item.text.ok()) entry["why"] = ItemReason(item);
    (item.text.ok() ? contents : left_out).push_back(std::move(entry));
  }
  const json all = {{"file", file},
                    {"bytes", bytes},
                    {"contents", std::move(contents)},
                    {"left_out", std::move(left_out)}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::ctl
