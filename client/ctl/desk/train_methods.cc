#include "client/ctl/desk/train_methods.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "client/ctl/desk/or_null.h"
#include "client/ctl/desk/train_words.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/table.h"
#include "planner/train/published.h"
#include "proto/base/status.h"

namespace sluice::ctl {
namespace {

using planner::train::Estimate;
using planner::train::Evidence;
using planner::train::GivenSettings;
using planner::train::Request;

absl::StatusOr<MethodAnswer> Answer(const Request& request,
                                    const GivenSettings& given,
                                    double max_step_s) {
  MethodAnswer answer;
  answer.request = request;
  SLUICE_ASSIGN_OR_RETURN(answer.estimate,
                          planner::train::BestEstimate(request, given));
  SLUICE_ASSIGN_OR_RETURN(
      answer.longest, planner::train::FindLongest(request, given, max_step_s));
  return answer;
}

std::string Validated(const Evidence& evidence) {
  if (!evidence.speed.empty()) return "validated on " + evidence.speed;
  if (!evidence.memory.empty()) return "memory validated on " + evidence.memory;
  return "not validated";
}

}  // namespace

absl::StatusOr<std::vector<MethodAnswer>> AnswerEveryMethod(
    const Request& asked, const GivenSettings& given, double max_step_s) {
  std::vector<MethodAnswer> methods;
  for (const auto method : planner::train::kMethods) {
    Request request = asked;
    request.method = method;
    const bool is_asked = method == asked.method;
    auto answer =
        Answer(request, is_asked ? given : GivenSettings(), max_step_s);
    if (is_asked && !answer.ok()) return answer.status();
    if (answer.ok()) methods.push_back(*std::move(answer));
  }
  return methods;
}

std::string MethodsTable(const std::vector<MethodAnswer>& methods) {
  Table table({"METHOD", ">MFU", ">TOKENS/S PER GPU", ">MEMORY PER GPU",
               ">LONGEST", ">ITS STEP", "SETTINGS", "FIGURES"});
  for (const MethodAnswer& each : methods) {
    const Estimate& e = each.estimate;
    const bool memory = HasMemory(e);
    table.Add({std::string(planner::train::MethodName(each.request.method)),
               e.fits ? fmt::format("{:.2f} %", 100 * e.mfu) : "does not fit",
               e.fits ? Count(e.tokens_per_gpu_per_s) : "-",
               memory ? Size(static_cast<int64_t>(e.gpu_peak_bytes)) : "-",
               each.longest.tokens > 0
                   ? planner::train::TokensText(each.longest.tokens)
                   : "none",
               each.longest.tokens > 0 ? Span(each.longest.at.step_s) : "-",
               memory ? SettingsText(each.request, e.settings) : "-",
               Validated(planner::train::EvidenceOf(each.request))});
  }
  return table.Text();
}

nlohmann::ordered_json MethodsJson(const std::vector<MethodAnswer>& methods) {
  auto all = nlohmann::ordered_json::array();
  for (const MethodAnswer& each : methods) {
    const Estimate& e = each.estimate;
    const Evidence evidence = planner::train::EvidenceOf(each.request);
    nlohmann::ordered_json one = {
        {"method", planner::train::MethodName(each.request.method)},
        {"fits", e.fits},
        {"reason", ReasonName(e.reason)},
        {"mfu", OrNull(e.fits, e.mfu)},
        {"tokens_per_gpu_per_s", OrNull(e.fits, e.tokens_per_gpu_per_s)},
        {"gpu_peak_bytes",
         OrNull(HasMemory(e), static_cast<int64_t>(e.gpu_peak_bytes))},
        {"max_seq_len", each.longest.tokens},
        {"max_seq_len_step_s",
         OrNull(each.longest.tokens > 0, each.longest.at.step_s)},
        {"stopped_by", ReasonName(each.longest.stopped_by)},
        {"settings",
         OrNull(HasMemory(e), SettingsJson(each.request, e.settings))},
        {"speed_validated_on", OrNull(!evidence.speed.empty(), evidence.speed)},
        {"memory_validated_on",
         OrNull(!evidence.memory.empty(), evidence.memory)}};
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace sluice::ctl
