#include "client/ctl/train_words.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "client/ctl/format.h"
#include "client/ctl/table.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using planner::train::Estimate;
using planner::train::Method;
using planner::train::Reason;
using planner::train::Request;
using planner::train::Settings;
using planner::train::TokensText;

std::string Sized(double bytes) { return Size(int64_t(bytes)); }

bool Chunked(Method method) {
  return method == Method::kFpdt || method == Method::kSluice;
}

bool Swapped(Method method) {
  return method == Method::kMemo || method == Method::kSluice;
}

std::string PartsTable(const NamedParts& parts, double whole, bool bytes) {
  Table table({{"", Table::Align::kLeft},
               {"", Table::Align::kRight},
               {"", Table::Align::kLeft}});
  for (const auto& [name, value] : parts) {
    if (value <= 0) continue;
    table.Add({fmt::format("  {}", name),
               bytes ? Sized(value) : fmt::format("{:.2f} s", value),
               Bar(value, whole)});
  }
  const std::string text = table.Text();
  return text.substr(text.find('\n') + 1);  // without the empty titles
}

nlohmann::ordered_json SettingsJson(const TrainAnswer& answer) {
  const Settings& s = answer.estimate.settings;
  const Method method = answer.request.method;
  nlohmann::ordered_json json = {{"method", planner::train::MethodName(method)},
                                 {"seq_len", answer.request.seq_len},
                                 {"gpus", answer.request.gpus},
                                 {"global_batch", answer.request.global_batch},
                                 {"tp", s.tp},
                                 {"cp", s.cp},
                                 {"sp", s.sp},
                                 {"dp", s.dp},
                                 {"pp", s.pp},
                                 {"zero", s.zero}};
  json["alpha"] = Swapped(method) ? nlohmann::ordered_json(s.alpha) : nullptr;
  json["chunk"] = Chunked(method) ? nlohmann::ordered_json(s.chunk) : nullptr;
  return json;
}

}  // namespace

NamedParts StepParts(const planner::train::Breakdown& b) {
  return {{"attention", b.attention},
          {"matmul", b.matmul},
          {"elementwise", b.elementwise},
          {"recompute", b.recompute},
          {"exposed_copy", b.exposed_copy},
          {"exposed_network", b.exposed_network},
          {"gradient_sync", b.gradient_sync},
          {"reorganisation", b.reorganisation},
          {"pipeline_bubble", b.pipeline_bubble},
          {"optimizer", b.optimizer}};
}

NamedParts MemoryParts(const planner::train::GpuMemory& m) {
  return {{"states", m.states},
          {"skeletal", m.skeletal},
          {"transient", m.transient},
          {"logits", m.logits},
          {"buffers", m.buffers}};
}

std::string SettingsText(const Request& request, const Settings& s) {
  std::string text;
  const auto add = [&](const std::string& word) {
    text += (text.empty() ? "" : ", ") + word;
  };
  const std::pair<const char*, int64_t> degrees[] = {
      {"TP", s.tp}, {"CP", s.cp}, {"SP", s.sp}, {"DP", s.dp}, {"PP", s.pp}};
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) add(fmt::format("{} {}", name, degree));
  }
  add(fmt::format("ZeRO {}", s.zero));
  if (Swapped(request.method)) add(fmt::format("alpha {:.4g}", s.alpha));
  if (Chunked(request.method)) add("chunk " + TokensText(s.chunk));
  return text;
}

std::string ReasonText(const Estimate& estimate) {
  switch (estimate.reason) {
    case Reason::kOk:
      return "fits";
    case Reason::kGpuMemory:
      return fmt::format("does not fit: needs {} of a GPU, {} are usable",
                         Sized(estimate.gpu_peak_bytes),
                         Sized(estimate.gpu_usable_bytes));
    case Reason::kHostMemory:
      return fmt::format(
          "does not fit: needs {} of a node's host memory, {} are usable",
          Sized(estimate.host_bytes_per_node),
          Sized(estimate.host_usable_bytes));
    case Reason::kHeads:
      break;
  }
  return "does not fit: the attention heads do not divide by the ranks";
}

std::string TrainWords(const TrainAnswer& answer) {
  const Request& request = answer.request;
  const Estimate& estimate = answer.estimate;
  std::string text = fmt::format(
      "{} on {} x {}, {} tokens, {}: {}\n", request.model.name, request.gpus,
      request.hardware.name, TokensText(request.seq_len),
      planner::train::MethodName(request.method), ReasonText(estimate));
  text += fmt::format("  {:<12}{}\n", "settings",
                      SettingsText(request, estimate.settings));
  text += fmt::format("  {:<12}{:.2f} %\n", "MFU", 100 * estimate.mfu);
  text += fmt::format("  {:<12}{} tokens a GPU and second\n", "speed",
                      Count(estimate.tokens_per_gpu_per_s));
  text += fmt::format("  {:<12}{} ({} sequences)\n", "step",
                      Span(estimate.step_s), request.global_batch);
  text += fmt::format("  {:<12}{} of {} usable\n", "GPU",
                      Sized(estimate.gpu_peak_bytes),
                      Sized(estimate.gpu_usable_bytes));
  if (estimate.host_bytes_per_node > 0) {
    text += fmt::format("  {:<12}{} a node of {} usable\n", "host",
                        Sized(estimate.host_bytes_per_node),
                        Sized(estimate.host_usable_bytes));
  }
  if (answer.longest) {
    const auto& longest = *answer.longest;
    text += fmt::format(
        "  {:<12}{} tokens; stopped by {}\n", "longest",
        TokensText(longest.tokens),
        longest.stopped_by == Reason::kOk
            ? "nothing up to " + TokensText(planner::train::kLongest)
            : std::string(ReasonName(longest.stopped_by)));
  }
  text += "the step\n" +
          PartsTable(StepParts(estimate.breakdown), estimate.step_s, false);
  text +=
      "a GPU's memory at its peak\n" +
      PartsTable(MemoryParts(estimate.memory), estimate.gpu_peak_bytes, true);
  if (!request.hardware.note.empty()) {
    text += "note: " + Printable(request.hardware.note) + "\n";
  }
  return text;
}

std::string TrainJson(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  nlohmann::ordered_json json = {
      {"fits", estimate.fits},
      {"reason", ReasonName(estimate.reason)},
      {"mfu", estimate.mfu},
      {"tokens_per_gpu_per_s", estimate.tokens_per_gpu_per_s},
      {"step_s", estimate.step_s},
      {"gpu_peak_bytes", int64_t(estimate.gpu_peak_bytes)},
      {"host_bytes_per_node", int64_t(estimate.host_bytes_per_node)},
      {"settings", SettingsJson(answer)}};
  nlohmann::ordered_json breakdown;
  for (const auto& [name, seconds] : StepParts(estimate.breakdown)) {
    breakdown[name] = seconds;
  }
  json["breakdown"] = breakdown;
  if (answer.longest) {
    json["max_seq_len"] = answer.longest->tokens;
    json["stopped_by"] = ReasonName(answer.longest->stopped_by);
  }
  return json.dump() + "\n";
}

}  // namespace sluice::ctl
