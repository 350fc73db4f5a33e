#include "client/ctl/desk/train_words.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "client/ctl/text/format.h"
#include "planner/train/published.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using Json = nlohmann::ordered_json;
using planner::train::Engine;
using planner::train::Estimate;
using planner::train::Evidence;
using planner::train::EvidenceOf;
using planner::train::Method;
using planner::train::MethodName;
using planner::train::PassTimes;
using planner::train::Reason;
using planner::train::Request;
using planner::train::Settings;
using planner::train::TokensText;
using planner::train::TraitsOf;

Json OrNull(bool there, const auto& value) {
  return there ? Json(value) : nullptr;
}

std::string Sized(double bytes) { return Size(int64_t(bytes)); }

// Whether alpha applies; sluice has one only with the trainer's engine.
bool Swapped(Method method, const Settings& settings) {
  return TraitsOf(method).alpha && settings.engine == Engine::kTrainer;
}

// Named parts of the step's seconds or of the GPU's bytes, also those that are
// 0.
using NamedParts = std::vector<std::pair<const char*, double>>;

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

// False if the GPUs cannot be divided as requested.
bool HasMemory(const Estimate& estimate) {
  return estimate.reason != Reason::kHeads;
}

std::string PartsTable(const NamedParts& parts, double whole, bool bytes) {
  Table table({"", ">", ""});
  for (const auto& [name, value] : parts) {
    if (value <= 0) continue;
    table.Add({fmt::format("  {}", name),
               bytes ? Sized(value) : fmt::format("{:.2f} s", value),
               Bar(value, whole)});
  }
  const std::string text = table.Text();
  return text.substr(text.find('\n') + 1);  // without the empty titles
}

Json RemediesJson(const TrainAnswer& answer) {
  Json all = Json::array();
  for (const auto& remedy : answer.remedies) {
    all.push_back({{"flag", remedy.flag},
                   {"value", remedy.value},
                   {"without", remedy.without}});
  }
  return all;
}

// Formats "not validated: no published table has sluice on h100-80g".
std::string EvidenceText(const Request& request, const std::string& table) {
  if (!table.empty()) return "validated on " + table;
  return fmt::format("not validated: no published table has {} on {}",
                     MethodName(request.method),
                     Printable(request.hardware.name));
}

std::string SpeedEvidence(const Request& request) {
  return EvidenceText(request, EvidenceOf(request).speed);
}

std::string MemoryEvidence(const Request& request) {
  return EvidenceText(request, EvidenceOf(request).memory);
}

std::string Row(const char* name, const std::string& value) {
  return fmt::format("  {:<12}{}\n", name, value);
}

std::string RemedyWords(const TrainAnswer& answer) {
  if (answer.estimate.fits) return "";
  if (answer.remedies.empty()) {
    return Row("would fit",
               "with no single change: other settings, methods, lengths, and "
               "more GPUs, up to 64 times as many, were tried");
  }
  std::string text;
  for (const auto& remedy : answer.remedies) {
    text += Row(text.empty() ? "would fit" : "or", remedy.Text());
  }
  return text;
}

std::string IdleText(const TrainAnswer& answer) {
  const auto& idle = answer.idle;
  const Request& request = answer.request;
  const std::string text =
      fmt::format("{} of {} GPUs stay idle: ", idle.gpus, request.gpus);
  if (!idle.by_heads) return text + "with all of them it is no better";
  return text +
         fmt::format(
             "of the numbers of ranks that can share {} attention heads none "
             "uses all for {} sequences per step ({}){}",
             request.model.heads, request.global_batch, answer.batch_source,
             idle.batch ? fmt::format("; --global-batch {} does", *idle.batch)
                        : "");
}

Json SettingsJson(const Request& request, const Settings& s) {
  const Method method = request.method;
  Json json = {{"method", MethodName(method)},
               {"seq_len", request.seq_len},
               {"gpus", request.gpus},
               {"global_batch", request.global_batch},
               {"tp", s.tp},
               {"cp", s.cp},
               {"sp", s.sp},
               {"dp", s.dp},
               {"pp", s.pp},
               {"zero", s.zero}};
  json["alpha"] = OrNull(Swapped(method, s), s.alpha);
  json["chunk"] = OrNull(TraitsOf(method).chunk, s.chunk);
  if (method == Method::kSluice) {
    json["engine"] = planner::train::EngineName(s.engine);
  }
  if (const int64_t parts = RowParts(request, s); parts > 1) {
    json["row_parts"] = parts;
  }
  if (TraitsOf(method).recompute) {
    json["recompute"] = planner::train::RecomputeName(s.recompute);
  }
  if (s.interleave > 1) json["interleave"] = s.interleave;
  if (s.ep > 1) json["ep"] = s.ep;
  if (s.gpus() < request.gpus) json["idle_gpus"] = request.gpus - s.gpus();
  if (s.resident) json["resident"] = true;
  if (s.kept > 0) json["kept"] = s.kept;
  if (s.rerun_chunks > 0) {
    json["rerun"] = s.rerun_part(request.seq_len);
    json["rerun_layers"] = s.rerun_layers;
  }
  if (s.states == stream::StatePlace::kHost) {
    json["optimizer_states"] = stream::Name(s.states);
  }
  return json;
}

// Formats "TP 4, CP 2, ZeRO 1, alpha 0.5", without degrees of 1, and how many
// GPUs are idle.
std::string SettingsText(const Request& request, const Settings& s) {
  std::string text;
  const auto add = [&](const std::string& word) {
    text += (text.empty() ? "" : ", ") + word;
  };
  if (request.method == Method::kSluice) {
    add(fmt::format("engine {}", planner::train::EngineName(s.engine)));
  }
  const std::pair<const char*, int64_t> degrees[] = {
      {"TP", s.tp}, {"CP", s.cp}, {"SP", s.sp},
      {"DP", s.dp}, {"PP", s.pp}, {"EP", s.ep}};
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) add(fmt::format("{} {}", name, degree));
  }
  if (const int64_t parts = RowParts(request, s); parts > 1) {
    add(fmt::format("rows of queries in {} parts", parts));
  }
  add(fmt::format("ZeRO {}", s.zero));
  if (s.interleave > 1) add(fmt::format("interleaved {}", s.interleave));
  if (TraitsOf(request.method).recompute) {
    add(fmt::format("recompute {}",
                    planner::train::RecomputeName(s.recompute)));
  }
  if (s.states == stream::StatePlace::kHost) {
    add("optimizer states in host memory");
  }
  if (s.resident) {
    add("everything kept on the GPU");
  } else if (Swapped(request.method, s)) {
    add(fmt::format("alpha {:.4g}", s.alpha));
  }
  if (TraitsOf(request.method).chunk) add("chunk " + TokensText(s.chunk));
  if (s.kept > 0) add(fmt::format("last {:.0f} % kept", 100 * s.kept));
  if (s.rerun_chunks > 0) {
    add(fmt::format("first {:.0f} % run again by {} layers",
                    100 * s.rerun_part(request.seq_len), s.rerun_layers));
  }
  if (s.gpus() < request.gpus) {
    add(fmt::format("{} of {} GPUs idle", request.gpus - s.gpus(),
                    request.gpus));
  }
  return text;
}

std::string SpeedWords(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  return Row("MFU", fmt::format("{:.2f} % ({})", 100 * estimate.mfu,
                                SpeedEvidence(answer.request))) +
         Row("speed", fmt::format("{} tokens per GPU and second",
                                  Count(estimate.tokens_per_gpu_per_s))) +
         Row("step", fmt::format("{} ({} sequences)", Span(estimate.step_s),
                                 answer.request.global_batch));
}

std::string MemoryWords(const Estimate& estimate) {
  std::string text =
      Row("GPU", fmt::format("{} of {} usable", Sized(estimate.gpu_peak_bytes),
                             Sized(estimate.gpu_usable_bytes)));
  if (estimate.host_bytes_per_node > 0) {
    text += Row("host", fmt::format("{} per node of {} usable",
                                    Sized(estimate.host_bytes_per_node),
                                    Sized(estimate.host_usable_bytes)));
  }
  return text;
}

std::string LongestWords(const TrainAnswer& answer) {
  const auto& longest = *answer.longest;
  if (longest.tokens == 0) {
    return Row("longest", fmt::format("not even {} tokens: stopped by {}",
                                      TokensText(planner::train::kLengthStep),
                                      ReasonName(longest.stopped_by)));
  }
  return Row(
      "longest",
      fmt::format("{} tokens, {} a step; stopped by {} ({})",
                  TokensText(longest.tokens), Span(longest.at.step_s),
                  longest.stopped_by == Reason::kOk
                      ? "nothing up to " + TokensText(planner::train::kLongest)
                      : std::string(ReasonName(longest.stopped_by)),
                  MemoryEvidence(answer.request)));
}

std::string Validated(const Evidence& evidence) {
  if (!evidence.speed.empty()) return "validated on " + evidence.speed;
  if (!evidence.memory.empty()) return "memory validated on " + evidence.memory;
  return "not validated";
}

std::string MethodsTable(const std::vector<MethodAnswer>& methods) {
  Table table({"  METHOD", ">MFU", ">TOKENS/S PER GPU", ">MEMORY PER GPU",
               ">LONGEST", ">ITS STEP", "SETTINGS", "FIGURES"});
  for (const MethodAnswer& each : methods) {
    const Estimate& e = each.estimate;
    const bool memory = HasMemory(e);
    table.Add(
        {fmt::format("  {}", MethodName(each.request.method)),
         e.fits ? fmt::format("{:.2f} %", 100 * e.mfu) : "does not fit",
         e.fits ? Count(e.tokens_per_gpu_per_s) : "-",
         memory ? Sized(e.gpu_peak_bytes) : "-",
         each.longest.tokens > 0 ? TokensText(each.longest.tokens) : "none",
         each.longest.tokens > 0 ? Span(each.longest.at.step_s) : "-",
         memory ? SettingsText(each.request, e.settings) : "-",
         Validated(EvidenceOf(each.request))});
  }
  return table.Text();
}

// These write the same keys for the asked method and for each of --compare.
void AddSpeed(Json& json, const Estimate& estimate) {
  json["fits"] = estimate.fits;
  json["reason"] = ReasonName(estimate.reason);
  json["mfu"] = OrNull(estimate.fits, estimate.mfu);
  json["tokens_per_gpu_per_s"] =
      OrNull(estimate.fits, estimate.tokens_per_gpu_per_s);
}
void AddPeak(Json& json, const Estimate& estimate) {
  json["gpu_peak_bytes"] =
      OrNull(HasMemory(estimate), int64_t(estimate.gpu_peak_bytes));
}
void AddLongest(Json& json, const planner::train::LongestSequence& longest) {
  json["max_seq_len"] = longest.tokens;
  json["max_seq_len_step_s"] = OrNull(longest.tokens > 0, longest.at.step_s);
  json["stopped_by"] = ReasonName(longest.stopped_by);
}
void AddEvidence(Json& json, const Request& request) {
  const Evidence evidence = EvidenceOf(request);
  json["speed_validated_on"] = OrNull(!evidence.speed.empty(), evidence.speed);
  json["memory_validated_on"] =
      OrNull(!evidence.memory.empty(), evidence.memory);
}

Json MethodsJson(const std::vector<MethodAnswer>& methods) {
  auto all = Json::array();
  for (const MethodAnswer& each : methods) {
    const Estimate& e = each.estimate;
    Json one = {{"method", MethodName(each.request.method)}};
    AddSpeed(one, e);
    AddPeak(one, e);
    AddLongest(one, each.longest);
    one["settings"] =
        OrNull(HasMemory(e), SettingsJson(each.request, e.settings));
    AddEvidence(one, each.request);
    all.push_back(std::move(one));
  }
  return all;
}

// Formats "does not fit: needs 91 GiB of a GPU, 72 GiB are usable".
std::string ReasonText(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  const Request& request = answer.request;
  switch (estimate.reason) {
    case Reason::kOk:
    case Reason::kStep:
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
  return fmt::format(
      "does not fit: the {} attention heads do not divide by the ranks",
      request.model.heads);
}

// Returns one sentence for each fact besides the figures.
std::vector<std::string> NotesOf(const TrainAnswer& answer) {
  const Request& request = answer.request;
  std::vector<std::string> notes = request.model_notes;
  const int64_t positions = request.model.max_positions;
  const int64_t tokens = std::max(
      request.seq_len, answer.longest ? answer.longest->tokens : int64_t{0});
  if (positions > 0 && tokens > positions) {
    notes.push_back(fmt::format(
        "the model has {} learned positions, so its table must be made longer "
        "for {} tokens; the longer table is not counted",
        Count(positions), TokensText(tokens)));
  }
  const Settings& settings = answer.estimate.settings;
  const bool memory = HasMemory(answer.estimate);
  if (memory && request.method == Method::kSluice &&
      settings.engine == Engine::kPython && settings.sp > 1) {
    notes.push_back(
        "engine python: ranks that share a sequence (stream(group=...)) have "
        "run on CPUs alone; on a GPU stream() refuses them so far");
  }
  if (memory && answer.idle.gpus > 0) notes.push_back(IdleText(answer));
  if (answer.estimate.fits && answer.estimate.reorganisation_unknown) {
    notes.push_back(fmt::format(
        "a caching allocator would reorganise its memory here, as it was seen "
        "to on {}; what that costs on {} was never measured and is not "
        "charged",
        planner::train::kMemoHardware, Printable(request.hardware.name)));
  }
  const int64_t head_dim = request.model.head_dim();
  if (request.hardware.OtherHeads(head_dim)) {
    notes.push_back(fmt::format(
        "attention's speed on {} was measured over heads of {}, and this "
        "model's are of {}",
        Printable(request.hardware.name), request.hardware.attention_head_dim,
        head_dim));
  }
  if (!request.hardware.note.empty()) {
    notes.push_back(Printable(request.hardware.note));
  }
  return notes;
}

Json PartsJson(const NamedParts& parts) {
  Json json;
  for (const auto& [name, value] : parts) json[name] = value;
  return json;
}

Json TrainObject(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  Json json;
  AddSpeed(json, estimate);
  json["step_s"] = OrNull(estimate.fits, estimate.step_s);
  AddEvidence(json, answer.request);
  AddPeak(json, estimate);
  json["host_bytes_per_node"] =
      OrNull(HasMemory(estimate), int64_t(estimate.host_bytes_per_node));
  json["settings"] = SettingsJson(answer.request, estimate.settings);
  json["breakdown"] =
      OrNull(estimate.fits, PartsJson(StepParts(estimate.breakdown)));
  if (answer.longest) AddLongest(json, *answer.longest);
  if (!estimate.fits) json["would_fit"] = RemediesJson(answer);
  if (answer.idle.gpus > 0) {
    json["idle_because"] = answer.idle.by_heads ? "heads" : "no_better";
    json["batch_using_all"] =
        OrNull(answer.idle.batch.has_value(), answer.idle.batch.value_or(0));
  }
  if (!answer.methods.empty()) json["methods"] = MethodsJson(answer.methods);
  json["notes"] = NotesOf(answer);
  return json;
}

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
  const Request& request = answer.request;
  const std::string settings =
      HasMemory(answer.estimate)
          ? ": " + SettingsText(request, answer.estimate.settings)
          : "";
  Json would_fit = Json::array();
  for (const auto& remedy : answer.remedies) would_fit.push_back(remedy.Text());
  return {{"what", fmt::format("{} · {} tokens · {} × {}", request.model.name,
                               TokensText(request.seq_len), request.gpus,
                               request.hardware.name)},
          {"settings",
           fmt::format("method {}{}", MethodName(request.method), settings)},
          {"reason", ReasonText(answer)},
          {"would_fit", std::move(would_fit)},
          {"not_validated", not_validated}};
}

}  // namespace

std::string TrainWords(const TrainAnswer& answer) {
  const Request& request = answer.request;
  const Estimate& estimate = answer.estimate;
  std::string text = fmt::format(
      "{} on {} x {}, {} tokens, {}: {}\n", request.model.name, request.gpus,
      request.hardware.name, TokensText(request.seq_len),
      MethodName(request.method), ReasonText(answer));
  text += RemedyWords(answer);
  if (HasMemory(estimate)) {
    text += Row("settings", SettingsText(request, estimate.settings));
  }
  if (estimate.fits) text += SpeedWords(answer);
  if (HasMemory(estimate)) text += MemoryWords(estimate);
  if (answer.longest) text += LongestWords(answer);
  if (estimate.fits) {
    text += "the step\n" +
            PartsTable(StepParts(estimate.breakdown), estimate.step_s, false);
  }
  if (HasMemory(estimate)) {
    text +=
        "a GPU's memory at its peak\n" +
        PartsTable(MemoryParts(estimate.memory), estimate.gpu_peak_bytes, true);
  }
  if (!answer.methods.empty()) {
    text +=
        "every method, at its best settings\n" + MethodsTable(answer.methods);
  }
  for (const auto& note : NotesOf(answer)) text += "note: " + note + "\n";
  return text;
}

std::string TrainJson(const TrainAnswer& answer) {
  return TrainObject(answer).dump() + "\n";
}

std::string TrainPage(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  Json drawn = Json::array();
  std::vector<std::string_view> unproved;
  for (const MfuCurve& curve : answer.curves) {
    if (!curve.validated && !curve.points.empty()) {
      unproved.push_back(MethodName(curve.method));
    }
    drawn.push_back({{"method", MethodName(curve.method)},
                     {"chosen", curve.method == answer.request.method},
                     {"points", curve.points}});
  }
  const std::string not_validated =
      unproved.empty()
          ? ""
          : fmt::format(" Not validated on {} by any published table: {}.",
                        answer.request.hardware.name,
                        fmt::join(unproved, ", "));
  const Json data = {
      {"answer", TrainObject(answer)},
      {"about",
       {{"gpu_bytes", answer.request.hardware.memory_bytes},
        {"gpu_usable_bytes", estimate.gpu_usable_bytes},
        {"host_usable_bytes", estimate.host_usable_bytes},
        {"speed_evidence", SpeedEvidence(answer.request)},
        {"memory_evidence", MemoryEvidence(answer.request)}}},
      {"words", WordsJson(answer, not_validated)},
      {"memory",
       OrNull(HasMemory(estimate), PartsJson(MemoryParts(estimate.memory)))},
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
