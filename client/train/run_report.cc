#include "client/train/run_report.h"

#include <nlohmann/json.hpp>

#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json Fractions(const std::vector<plan::ClassPlan>& classes) {
  Json json = Json::object();
  for (const plan::ClassPlan& c : classes) {
    json[c.name] = {{"keep", c.fractions.keep},
                    {"swap", c.fractions.swap},
                    {"recompute", c.fractions.recompute}};
  }
  return json;
}

Json ReportSettings(const RunReport& r) {
  if (!r.settings.has_value()) return nullptr;
  return {{"chunk", r.settings->chunk},
          {"prefetch", r.settings->prefetch},
          {"backward_order", stream::Name(r.settings->order)},
          {"resident", r.settings->resident},
          {"rerun_chunks", r.settings->rerun_chunks},
          {"rerun_layers", r.settings->rerun_layers},
          {"kept", r.settings->kept},
          {"why", OrNull(r.settings_why)}};
}

Json Price(const std::optional<stream::StepPrice>& price) {
  if (!price.has_value()) return nullptr;
  return {{"hbm_bytes", price->hbm.count()},
          {"host_bytes", price->host.count()},
          {"recomputed_bytes", price->recomputed.count()},
          {"recompute_seconds", price->recompute_s},
          {"length_gain", price->length_gain()}};
}

Json Resumed(const ResumeReport& r) {
  if (r.checkpoint.empty()) return nullptr;
  return {{"checkpoint", r.checkpoint}, {"step", r.step}, {"run", r.run}};
}

Json Saves(const SaveReport& s) {
  Json json = {{"done", s.done},
               {"failed", s.failed},
               {"last_step", nullptr},
               {"last_failure", nullptr}};
  if (s.last_step >= 0) json["last_step"] = s.last_step;
  if (s.failed > 0) {
    json["last_failure"] = {{"step", s.failed_step},
                            {"limited_by", s.limited_by},
                            {"message", s.failure}};
  }
  return json;
}

}  // namespace

std::string ToJson(const RunReport& r, const absl::Status& status) {
  Json json = {{"ok", status.ok()},
               {"fits", !IsOutOfMemory(status)},
               {"limited_by", LimitedBy(status)},
               {"message", std::string(status.message())},
               {"run", r.run},
               {"method", r.method},
               {"attention", OrNull(r.attention)},
               {"seq_len", r.seq_len},
               {"ranks", r.ranks},
               {"settings", ReportSettings(r)},
               {"price", Price(r.price)},
               {"optimizer_states", stream::Name(r.states)},
               {"optimizer_states_why", OrNull(r.states_why)},
               {"steps", r.steps},
               {"losses", r.losses},
               {"first_loss", nullptr},
               {"last_loss", nullptr},
               {"peak_hbm_bytes", r.peak_hbm.count()},
               {"host_bytes", r.host.count()},
               {"hbm_bytes_per_gpu", r.hbm_per_gpu.count()},
               {"tokens_per_second", r.tokens_per_second},
               {"seconds_per_step", r.seconds_per_step},
               {"alpha", r.alpha},
               {"fractions", Fractions(r.fractions)},
               {"plan",
                {{"peak_bytes", r.plan.peak.count()},
                 {"lower_bound_bytes", r.plan.lower_bound.count()},
                 {"proved_by", r.plan.proved_by},
                 {"mismatches", r.plan.mismatches}}},
               {"grant_wait_seconds", r.grant_wait_seconds},
               {"stall_seconds", r.stall_seconds},
               {"interrupted", r.interrupted},
               {"resumed", Resumed(r.resumed)},
               {"saves", Saves(r.saves)},
               {"log_lines_unwritten", r.log_lines_unwritten},
               {"plan_changes", Json::array()}};
  for (const runtime::PlanChangeRecord& change : r.plan_changes) {
    json["plan_changes"].push_back({{"after_step", change.step},
                                    {"plan_id", change.plan},
                                    {"taken", change.taken},
                                    {"alpha", change.alpha},
                                    {"note", change.note}});
  }
  if (!r.losses.empty()) {
    json["first_loss"] = r.losses.front();
    json["last_loss"] = r.losses.back();
  }
  // A path in the message may not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sluice::train
