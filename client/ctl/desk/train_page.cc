#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "client/ctl/desk/train_words.h"

namespace sluice::ctl {
namespace {

// Keeps the order of keys, in which the page draws.
using Json = nlohmann::ordered_json;
using planner::train::PassTimes;

Json PassJson(const PassTimes& pass) {
  return {{"matmul", pass.matmul},
          {"attention", pass.attention},
          {"elementwise", pass.elementwise},
          {"network", pass.network},
          {"exposed_copy", pass.exposed_copy},
          {"copy_out", pass.copy_out},
          {"copy_in", pass.copy_in}};
}

Json WordsJson(const TrainAnswer& answer, const std::string& not_validated) {
  const planner::train::Request& request = answer.request;
  std::string settings =
      fmt::format("method {}", planner::train::MethodName(request.method));
  if (HasMemory(answer.estimate)) {
    settings += ": " + SettingsText(request, answer.estimate.settings);
  }
  Json would_fit = Json::array();
  for (const auto& remedy : answer.remedies) would_fit.push_back(remedy.Text());
  return {{"what", fmt::format("{} · {} tokens · {} × {}", request.model.name,
                               planner::train::TokensText(request.seq_len),
                               request.gpus, request.hardware.name)},
          {"settings", std::move(settings)},
          {"reason", ReasonText(answer)},
          {"would_fit", std::move(would_fit)},
          {"not_validated", not_validated}};
}

}  // namespace

std::string TrainPage(const TrainAnswer& answer,
                      const std::vector<MfuCurve>& curves) {
  const planner::train::Estimate& estimate = answer.estimate;
  Json drawn = Json::array();
  std::string unproved;
  for (const MfuCurve& curve : curves) {
    if (!curve.validated && !curve.points.empty()) {
      unproved += (unproved.empty() ? "" : ", ") + curve.method;
    }
    drawn.push_back({{"method", curve.method},
                     {"chosen", curve.chosen},
                     {"points", curve.points}});
  }
  if (!unproved.empty()) {
    unproved = fmt::format(" Not validated on {} by any published table: {}.",
                           answer.request.hardware.name, unproved);
  }
  Json memory;
  if (HasMemory(estimate)) {
    for (const auto& [name, bytes] : MemoryParts(estimate.memory)) {
      memory[name] = bytes;
    }
  }
  const Json data = {{"answer", TrainObject(answer)},
                     {"about",
                      {{"gpu_bytes", answer.request.hardware.memory_bytes},
                       {"gpu_usable_bytes", estimate.gpu_usable_bytes},
                       {"host_usable_bytes", estimate.host_usable_bytes},
                       {"speed_evidence", SpeedEvidence(answer.request)},
                       {"memory_evidence", MemoryEvidence(answer.request)}}},
                     {"words", WordsJson(answer, unproved)},
                     {"memory", std::move(memory)},
                     {"layer",
                      {{"forward", PassJson(estimate.layer.forward)},
                       {"recompute", PassJson(estimate.layer.recompute)},
                       {"backward", PassJson(estimate.layer.backward)}}},
                     {"curves", std::move(drawn)}};
  // A name with "</script>" must not end the element that holds the JSON.
  const std::string text = absl::StrReplaceAll(
      data.dump(-1, ' ', false, Json::error_handler_t::replace),
      {{"<", "\\u003c"}});
  return absl::StrReplaceAll(kTrainPage, {{"@DATA@", text}});
}

}  // namespace sluice::ctl
