#include "client/train/announce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_join.h"
#include "client/train/launch/private_daemon.h"
#include "client/train/step/stepper.h"
#include "client/train/watch/rank_watch.h"

namespace sluice::train {
namespace {

std::string Percent(double fraction) {
  return fmt::format("{:.0f} %", 100 * fraction);
}

// Formats "swapped", or "40 % kept, 60 % swapped".
std::string Treatment(const plan::ClassPlan& c) {
  std::vector<std::string> parts;
  for (const auto& [fraction, word] :
       {std::pair(c.fractions.keep, "kept on the GPU"),
        {c.fractions.swap, "swapped"},
        {c.fractions.recompute, "recomputed"}}) {
    if (fraction > 0.995) return word;
    if (fraction >= 0.005) parts.push_back(Percent(fraction) + " " + word);
  }
  return absl::StrJoin(parts, ", ");
}

// Formats "swapped: k, v; recomputed: norm1; 40 % kept, 60 % swapped: ffn_up",
// in the order of each treatment's first class.
std::string PlanInWords(const std::vector<plan::ClassPlan>& classes) {
  std::vector<std::pair<std::string, std::string>> groups;
  for (const plan::ClassPlan& c : classes) {
    const std::string treatment = Treatment(c);
    const auto group = std::ranges::find(
        groups, treatment, [](const auto& each) { return each.first; });
    if (group == groups.end()) {
      groups.emplace_back(treatment, c.name);
    } else {
      group->second += ", " + c.name;
    }
  }
  return absl::StrJoin(groups, "; ", absl::PairFormatter(": "));
}

std::string ModelLine(const BannerFacts& f) {
  const stream::ModelShape& m = f.options.model;
  return fmt::format(
      "model   {} parameters: {}, {} layers, hidden {}, {} heads ({} for k, "
      "v), ffn {}, vocab {}, {}, attention by {}",
      Count(static_cast<double>(m.trained_parameters())), m.name, m.layers,
      m.hidden, m.heads, m.kv_heads, m.ffn, m.vocab, Name(f.options.dtype),
      f.attention);
}

std::string StepLine(const BannerFacts& f) {
  const RunOptions& o = f.options;
  std::string text = fmt::format("step    {} on {}: {} tokens", Name(o.method),
                                 Counted(f.ranks, "rank"), o.seq_len);
  if (o.sequences() > 1) text += fmt::format(" x {} sequences", o.sequences());
  if (o.method == Method::kSluice) {
    text += fmt::format(", {} of {}",
                        Counted((o.seq_len + o.chunk - 1) / o.chunk, "chunk"),
                        std::min(o.chunk, o.seq_len));
    if (o.rerun_chunks > 0) {
      text += fmt::format(", the first {} run again by {}", o.rerun_chunks,
                          Counted(o.rerun_layers, "layer"));
    }
  }
  if (f.compute_s <= 0) {
    return text + "; its time is not known before the first";
  }
  text += fmt::format("; about {} expected (compute {}",
                      Duration(std::max(f.compute_s, f.copy_s)),
                      Duration(f.compute_s));
  if (f.copy_s > 0) {
    text += fmt::format(", copies beside it {}", Duration(f.copy_s));
  }
  return text + ", as calibrated; without the optimizer)";
}

std::string PlanLine(const BannerFacts& f) {
  switch (f.options.method) {
    case Method::kSluice:
      return "plan    " + PlanInWords(f.classes);
    case Method::kKeepAll:
      return "plan    every activation kept on the GPU";
    case Method::kAlst:
      return "plan    layer inputs in host memory, layers recomputed, all but "
             "attention tile by tile";
    case Method::kRecompute:
      break;
  }
  return "plan    layer inputs kept on the GPU, layers recomputed";
}

std::string PriceLine(const stream::StepPrice& p, const BannerFacts& f) {
  std::string text =
      fmt::format("price   activations: {} in HBM, {} in host memory, ",
                  FormatBytes(p.hbm), FormatBytes(p.host));
  if (p.recompute_s <= 0) return text + "none computed again";
  const double seconds =
      p.recompute_s * static_cast<double>(f.options.sequences());
  text += fmt::format("{} computed again in {}", FormatBytes(p.recomputed),
                      Duration(seconds));
  if (f.compute_s > 0) {
    text += fmt::format(" ({} of the step's compute)",
                        Percent(seconds / f.compute_s));
  }
  return text + fmt::format(" for {:.3g} times the tokens", p.length_gain());
}

std::string MemoryLine(const BannerFacts& f) {
  std::string text =
      fmt::format("memory  {}: {} of {} leased per rank{}; ", f.gpu,
                  FormatBytes(f.leased), FormatBytes(f.gpu_total),
                  f.options.hbm.count() > 0
                      ? ""
                      : " (all that was free for it; --hbm SIZE takes less)");
  if (f.transient.has_value()) {
    text += fmt::format("{} in use, {} more in a step", FormatBytes(f.used),
                        FormatBytes(*f.transient));
  } else {
    text += fmt::format(
        "{} in use, what activations need is not known before the first step",
        FormatBytes(f.used));
  }
  if (f.host <= Bytes(0)) return text + "; no host memory";
  return text + fmt::format(
                    "; host {} of {}{}", FormatBytes(f.host),
                    FormatBytes(f.host_limit),
                    f.options.host.count() > 0 ? " (its share of --host)" : "");
}

// Returns the expected seconds of a step's compute and of its copies; zeros if
// nothing was calibrated.
std::pair<double, double> ExpectedOf(const StepperContext& context,
                                     const Stepper& stepper) {
  const runtime::SavedPlan* saved = stepper.saved_plan();
  const plan::RankPlan* own = stepper.own_plan();
  if (saved == nullptr || own == nullptr) return {};
  const client::NodeLimits limits = context.memory->session().limits();
  const auto sequences = static_cast<double>(context.options->sequences());
  return {
      sequences * ComputeSeconds(saved->profile),
      sequences * CopySeconds(saved->profile, *own, limits.h2d_bytes_per_second,
                              limits.d2h_bytes_per_second)};
}

BannerFacts FactsOf(const StepperContext& context, const Stepper& stepper,
                    const std::string& cut) {
  const RunOptions& o = *context.options;
  const client::NodeLimits limits = context.memory->session().limits();
  const auto [compute_s, copy_s] = ExpectedOf(context, stepper);
  BannerFacts f{
      .options = o,
      .attention = context.KernelName(),
      .ranks = context.environment->world_size,
      .cut = cut,
      .gpu = fmt::format("GPU {}", context.memory->gpu().value()),
      .leased = context.memory->size(),
      .gpu_total = limits.gpu_total,
      .used = context.memory->allocator().stats().used,
      .host = stepper.host_bytes(),
      .host_limit = o.host.count() > 0
                        ? o.host / context.environment->local_world_size
                        : limits.host_total,
      .compute_s = compute_s,
      .copy_s = copy_s};
  if (const plan::RankPlan* own = stepper.own_plan()) {
    f.classes = own->classes;
    f.transient = own->transient_peak;
    f.price = stepper.price();
  }
  return f;
}

}  // namespace

std::string Count(double number) {
  for (const auto& [size, unit] :
       {std::pair(1e9, "B"), {1e6, "M"}, {1e3, "k"}}) {
    if (number < size) continue;
    const double count = number / size;
    return count < 100 ? fmt::format("{:.3g}{}", count, unit)
                       : fmt::format("{:.0f}{}", count, unit);
  }
  return fmt::format("{:.0f}", number);
}

std::vector<std::string> Banner(const BannerFacts& facts) {
  std::vector<std::string> lines = {ModelLine(facts), PlanLine(facts),
                                    MemoryLine(facts), StepLine(facts)};
  if (facts.price.has_value()) {
    lines.insert(lines.begin() + 2, PriceLine(*facts.price, facts));
  }
  if (!facts.cut.empty()) {
    lines.insert(lines.begin() + 1, "cut     " + facts.cut);
  }
  return lines;
}

double ComputeSeconds(const plan::RankProfile& profile) {
  double sum = 0;
  for (const plan::SegmentKind& kind : profile.segments) {
    sum += kind.seconds * static_cast<double>(kind.executions);
  }
  return sum;
}

double CopySeconds(const plan::RankProfile& profile, const plan::RankPlan& plan,
                   double h2d_bytes_per_second, double d2h_bytes_per_second) {
  double in = 0, out = 0;
  for (const plan::LayerKind& k : profile.kinds) {
    const auto layers = static_cast<double>(k.layers);
    in += layers * static_cast<double>(
                       (k.forward_h2d_fixed + k.backward_h2d_fixed).count());
    out += layers * static_cast<double>(
                        (k.forward_d2h_fixed + k.backward_d2h_fixed).count());
  }
  for (const plan::SkeletalClass& c : profile.classes) {
    if (c.traffic_in_fixed) continue;
    for (const plan::ClassPlan& planned : plan.classes) {
      if (planned.name != c.name || planned.kind != c.kind) continue;
      const double bytes =
          planned.fractions.swap *
          static_cast<double>(plan::KindOf(profile, c).layers) *
          static_cast<double>(c.bytes_per_layer.count());
      in += bytes;
      out += bytes;
    }
  }
  return std::max(h2d_bytes_per_second > 0 ? in / h2d_bytes_per_second : 0,
                  d2h_bytes_per_second > 0 ? out / d2h_bytes_per_second : 0);
}

void ExpectSteps(const StepperContext& context, const Stepper& stepper) {
  const auto [compute_s, copy_s] = ExpectedOf(context, stepper);
  context.watch->Expect(StepTracker(context.options->model.layers,
                                    stepper.layout().chunks(), stepper.costs()),
                        std::max(compute_s, copy_s));
}

void Announce(const StepperContext& context, const Stepper& stepper,
              const std::string& cut) {
  if (context.environment->rank != 0) return;
  if (const char* note = std::getenv(kPrivateNote)) {
    context.watch->console().Note(note);
  }
  for (const std::string& line : Banner(FactsOf(context, stepper, cut))) {
    context.watch->console().Note(line);
  }
}

}  // namespace sluice::train
