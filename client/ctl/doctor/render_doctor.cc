#include "client/ctl/doctor/render_doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

const char* Name(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarning:
      return "warning";
    case Health::kProblem:
      return "problem";
  }
  return "?";
}

}  // namespace

bool IsWell(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& f) {
    return f.health == Health::kProblem;
  });
}

std::string RenderDoctor(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& found : findings) {
    text += fmt::format("{:<8} {:<17} {}\n", Name(found.health), found.what,
                        Printable(found.said));
    if (!found.fix.empty()) text += fmt::format("{:26} $ {}\n", "", found.fix);
  }
  return text;
}

std::string RenderDoctorJson(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& found : findings) {
    list.push_back(
        {{"what", found.what},
         {"ok", found.health != Health::kProblem},
         {"health", Name(found.health)},
         {"said", found.said},
         {"fix", found.fix.empty() ? json(nullptr) : json(found.fix)}});
  }
  const json all = {{"ok", IsWell(findings)}, {"findings", std::move(list)}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::ctl
