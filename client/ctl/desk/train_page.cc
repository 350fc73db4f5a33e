#include "client/ctl/desk/train_page.h"

#include <fmt/format.h>

#include "client/ctl/desk/train_charts.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"

namespace sluice::ctl {
namespace {

using planner::train::Estimate;
using planner::train::Reason;
using planner::train::Request;
using planner::train::TokensText;

constexpr const char* kPageStyle = R"(<style>
:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1a2130;
--soft:#5d6779;--line:#e2e6ec;--lane:#edf0f4;--good:#1b7f4b;--bad:#c2273d;
--attention:#2f6db5;--matmul:#2a9d8f;--elementwise:#86b8a5;--recompute:#e9a03b;
--copy:#d8573c;--network:#8a5fb0;--sync:#b79ad0;--reorg:#8c5a3c;
--bubble:#a9b1bd;--optimizer:#5a6578;--in:#fff;
--megatron:#8c5a3c;--ulysses:#8a5fb0;--memo:#2a9d8f;--fpdt:#d98a1f;
--alst:#b3476b;--upipe:#5d8a2f;--ring:#5a6578;--sluice:#2f6db5}
@media(prefers-color-scheme:dark){:root{--page:#10131a;--card:#191e27;
--ink:#e9edf4;--soft:#9aa5b8;--line:#2a313d;--lane:#232a35;--good:#58c98d;
--bad:#ff7a8c;--attention:#5c9ae0;--matmul:#45b8a9;--elementwise:#6f9c8b;
--recompute:#e3a548;--copy:#e57257;--network:#a981d1;--sync:#8f77a8;
--reorg:#b48263;--bubble:#6b7585;--optimizer:#8290a6;--in:#0e1218;
--megatron:#c0906f;--ulysses:#b18fd8;--memo:#45b8a9;--fpdt:#e3a548;
--alst:#d9799a;--upipe:#93bf63;--ring:#8290a6;--sluice:#6aa8ee}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);line-height:1.45;
font:15px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}
main{max-width:1040px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:25px;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:16px;margin:0 0 2px}
p{margin:0;color:var(--soft)}
.verdict{font-weight:600;color:var(--good)}.verdict.no{color:var(--bad)}
.tiles{display:grid;gap:12px;margin:20px 0;
grid-template-columns:repeat(auto-fit,minmax(146px,1fr))}
.tile,.card{background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:14px 16px}
.tile b{display:block;white-space:nowrap;font-size:20px;font-weight:650;letter-spacing:-.01em}
.tile span{color:var(--soft);font-size:13px}
.card{margin:14px 0;padding:18px 20px}
.card p{font-size:13.5px;margin-bottom:10px}
svg{width:100%;height:auto;display:block}
svg text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;
fill:var(--soft)}
svg .e{text-anchor:end}svg .m{text-anchor:middle}
svg .s{fill:var(--ink);font-weight:600}
svg .in{fill:var(--in);font-weight:600;pointer-events:none}
svg .busy{fill:var(--ink);paint-order:stroke;stroke:var(--lane);
stroke-width:3px;stroke-linejoin:round;stroke-opacity:.55}
.lane{fill:var(--lane)}.c{stroke:var(--card);stroke-width:1}
.grid{stroke:var(--line)}.rule{stroke:var(--soft);stroke-width:1}
.dash{stroke-dasharray:4 4}.limit{stroke:var(--bad);stroke-width:2}
svg .limit-text{fill:var(--bad);font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin-top:12px;font-size:13px;
color:var(--soft)}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;
margin-right:7px;vertical-align:-1px}.legend b{color:var(--ink);
font-weight:600;font-variant-numeric:tabular-nums}
.curve{fill:none;stroke-width:1.8;opacity:.75}
.curve.chosen{stroke-width:3.2;opacity:1}.dot{stroke:var(--card)}
svg .name{font-weight:500}svg .name.chosen{font-weight:700}
.asked{fill:var(--card);stroke:var(--ink);stroke-width:2.4}
footer{margin-top:22px;font-size:13px;color:var(--soft)}
)";

// Colours of parts and methods: one rule each, from the variables above.
std::string ColourRules() {
  const std::pair<const char*, const char*> parts[] = {
      {"attention", "attention"},
      {"matmul", "matmul"},
      {"elementwise", "elementwise"},
      {"recompute", "recompute"},
      {"exposed_copy", "copy"},
      {"copy", "bubble"},
      {"exposed_network", "network"},
      {"gradient_sync", "sync"},
      {"reorganisation", "reorg"},
      {"pipeline_bubble", "bubble"},
      {"optimizer", "optimizer"},
      {"states", "attention"},
      {"skeletal", "matmul"},
      {"transient", "recompute"},
      {"logits", "copy"},
      {"buffers", "network"}};
  std::string rules;
  for (const auto& [part, colour] : parts) {
    rules += fmt::format(".{}{{fill:var(--{});background:var(--{})}}\n",
                         ColourOf(part), colour, colour);
  }
  for (const auto method : planner::train::kMethods) {
    const std::string name(planner::train::MethodName(method));
    rules += fmt::format(
        ".curve.m-{0}{{stroke:var(--{0})}}.dot.m-{0},svg "
        ".name.m-{0}{{fill:var(--{0})}}\n",
        name);
  }
  return rules + "</style>\n";
}

std::string Tile(const std::string& value, const std::string& what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>",
                     EscapeHtml(value), EscapeHtml(what));
}

std::string Card(const std::string& title, const std::string& about,
                 const std::string& inside) {
  return fmt::format(
      "<section class=\"card\"><h2>{}</h2><p>{}</p>{}</section>\n",
      EscapeHtml(title), EscapeHtml(about), inside);
}

std::string Legend(const NamedParts& parts, double whole, bool bytes) {
  std::string items;
  for (const auto& [name, value] : parts) {
    if (value <= 0) continue;
    items += fmt::format(
        "<span><i class=\"{}\"></i>{} <b>{}</b> {:.1f} %</span>",
        ColourOf(name), PartTitle(name),
        bytes ? Size(int64_t(value)) : Span(value), 100 * value / whole);
  }
  return "<div class=\"legend\">" + items + "</div>";
}

std::string Head(const TrainAnswer& answer) {
  const Request& request = answer.request;
  const Estimate& estimate = answer.estimate;
  std::string remedies;
  for (const auto& remedy : answer.remedies) {
    remedies += (remedies.empty() ? "" : "; or ") + remedy.Text();
  }
  return fmt::format(
      "<h1>{} · {} tokens · {} × {}</h1>\n<p>method {}{} · <span "
      "class=\"verdict{}\">{}</span>{}</p>\n",
      EscapeHtml(request.model.name), TokensText(request.seq_len), request.gpus,
      EscapeHtml(request.hardware.name),
      planner::train::MethodName(request.method),
      HasMemory(estimate)
          ? ": " + EscapeHtml(SettingsText(request, estimate.settings))
          : "",
      estimate.fits ? "" : " no", EscapeHtml(ReasonText(answer)),
      remedies.empty() ? "" : "<br>It would fit: " + EscapeHtml(remedies));
}

// What ends the longest sequence, for a reader.
std::string Ended(Reason reason) {
  switch (reason) {
    case Reason::kOk:
      return "looked for";
    case Reason::kGpuMemory:
      return "then the GPU is full";
    case Reason::kHostMemory:
      return "then host memory is full";
    case Reason::kStep:
      return "then the step is too long";
    case Reason::kHeads:
      break;
  }
  return "the GPUs cannot share it";
}

std::string LongestTile(const TrainAnswer& answer) {
  const auto& longest = *answer.longest;
  const bool any = longest.tokens > 0;
  return Tile(
      any ? TokensText(longest.tokens)
          : "below " + TokensText(planner::train::kLengthStep),
      fmt::format("longest sequence{}; {}; {}",
                  any ? ", " + Span(longest.at.step_s) + " a step" : "",
                  Ended(longest.stopped_by), MemoryEvidence(answer.request)));
}

std::string Tiles(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  std::string tiles;
  if (estimate.fits) {
    tiles =
        Tile(fmt::format("{:.1f} %", 100 * estimate.mfu),
             "MFU, " + SpeedEvidence(answer.request)) +
        Tile(Count(estimate.tokens_per_gpu_per_s),
             "tokens per GPU and second") +
        Tile(Span(estimate.step_s), fmt::format("a step of {} sequences",
                                                answer.request.global_batch));
  }
  if (HasMemory(estimate)) {
    tiles += Tile(
        Size(int64_t(estimate.gpu_peak_bytes)),
        "of a GPU, " + Size(int64_t(estimate.gpu_usable_bytes)) + " usable");
  }
  if (HasMemory(estimate) && estimate.host_bytes_per_node > 0) {
    tiles += Tile(Size(int64_t(estimate.host_bytes_per_node)),
                  "host memory a node, " +
                      Size(int64_t(estimate.host_usable_bytes)) + " usable");
  }
  if (answer.longest) tiles += LongestTile(answer);
  return "<div class=\"tiles\">" + tiles + "</div>\n";
}

std::string MemoryCard(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  if (!HasMemory(estimate)) return "";
  const NamedParts parts = MemoryParts(estimate.memory);
  return Card(
      "Memory of a GPU at its peak",
      "By class; the grey rest is what context, communicators and "
      "fragmentation leave unusable.",
      StackedBar(parts, answer.request.hardware.memory_bytes,
                 estimate.gpu_usable_bytes,
                 "usable " + Size(int64_t(estimate.gpu_usable_bytes)), true) +
          Legend(parts, estimate.gpu_peak_bytes, true));
}

std::string StepCards(const TrainAnswer& answer) {
  const Estimate& estimate = answer.estimate;
  if (!estimate.fits) return "";
  const NamedParts parts = StepParts(estimate.breakdown);
  return Card("The step",
              "Where its time goes; copies and network only as "
              "far as nothing hides them.",
              StackedBar(parts, estimate.step_s, 0, "", false) +
                  Legend(parts, estimate.step_s, false)) +
         Card("One layer of it",
              "One sequence on one GPU. The lower lanes show how busy the "
              "link to host memory is while the layer computes.",
              LayerTimeline(estimate.layer));
}

// Names the curves that no measurement validated.
std::string NotValidated(const Request& request,
                         const std::vector<MfuCurve>& curves) {
  std::string names;
  for (const MfuCurve& curve : curves) {
    if (curve.validated || curve.points.empty()) continue;
    names += (names.empty() ? "" : ", ") + curve.method;
  }
  if (names.empty()) return "";
  return fmt::format(" Not validated on {} by any published table: {}.",
                     request.hardware.name, names);
}

}  // namespace

std::string TrainPage(const TrainAnswer& answer,
                      const std::vector<MfuCurve>& curves) {
  const Estimate& estimate = answer.estimate;
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>" +
      EscapeHtml(answer.request.model.name) + " · Sluice plan</title>\n" +
      kPageStyle + ColourRules() + "</head><body><main>\n";
  page += Head(answer) + Tiles(answer) + MemoryCard(answer) + StepCards(answer);
  page += Card(
      "MFU over length",
      "Each method with its best settings, up to the longest "
      "sequence that fits; the ring is what was asked for." +
          NotValidated(answer.request, curves),
      MfuChart(curves, answer.request.seq_len,
               estimate.fits ? std::optional(estimate.mfu) : std::nullopt));
  std::string notes;
  for (const std::string& note : NotesOf(answer)) {
    notes += "Note: " + EscapeHtml(note) + ".<br>";
  }
  page += fmt::format(
      "<footer>{}MFU counts causal attention as half and no recomputation "
      "(MEMO). `sluicectl plan validate` shows the model beside published "
      "tables.</footer>\n</main></body></html>\n",
      notes);
  return page;
}

}  // namespace sluice::ctl
