#include "client/train/watch/banner.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/train/watch/words.h"

namespace sluice::train {
namespace {

std::string Percent(double fraction) {
  return fmt::format("{:.0f} %", 100 * fraction);
}

// Formats "swapped", or "40 % kept, 60 % swapped".
std::string Treatment(const plan::ClassPlan& c) {
  struct Part {
    double fraction;
    const char* word;
  };
  std::string text;
  for (const Part& part : {Part{c.fractions.keep, "kept on the GPU"},
                           Part{c.fractions.swap, "swapped"},
                           Part{c.fractions.recompute, "recomputed"}}) {
    if (part.fraction > 0.995) return part.word;
    if (part.fraction < 0.005) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        Percent(part.fraction), part.word);
  }
  return text;
}

std::string ModelLine(const BannerFacts& f) {
  const stream::ModelShape& m = f.model;
  return fmt::format(
      "model   {} parameters: {}, {} layers, hidden {}, {} heads ({} for k, "
      "v), ffn {}, vocab {}, {}, attention by {}",
      Count(static_cast<double>(m.trained_parameters())), m.name, m.layers,
      m.hidden, m.heads, m.kv_heads, m.ffn, m.vocab, f.dtype, f.attention);
}

std::string StepLine(const BannerFacts& f) {
  std::string text = fmt::format("step    {} on {} rank{}: {} tokens", f.method,
                                 f.ranks, f.ranks == 1 ? "" : "s", f.seq_len);
  if (f.sequences > 1) text += fmt::format(" x {} sequences", f.sequences);
  if (f.chunk > 0) {
    text += fmt::format(
        ", {} chunk{} of {}", (f.seq_len + f.chunk - 1) / f.chunk,
        f.seq_len > f.chunk ? "s" : "", std::min(f.chunk, f.seq_len));
  }
  if (f.rerun_chunks > 0) {
    text +=
        fmt::format(", the first {} run again by {} layer{}", f.rerun_chunks,
                    f.rerun_layers, f.rerun_layers == 1 ? "" : "s");
  }
  if (f.compute_s <= 0)
    return text + "; its time is not known before the first";
  text += fmt::format("; about {} expected (compute {}",
                      Duration(std::max(f.compute_s, f.copy_s)),
                      Duration(f.compute_s));
  if (f.copy_s > 0) {
    text += fmt::format(", copies beside it {}", Duration(f.copy_s));
  }
  return text + ", as calibrated; without the optimizer)";
}

std::string PlanLine(const BannerFacts& f) {
  if (!f.classes.empty()) return "plan    " + PlanInWords(f.classes);
  if (f.method == "keep-all") return "plan    every activation kept on the GPU";
  if (f.method == "alst") {
    return "plan    layer inputs in host memory, layers recomputed, all but "
           "attention tile by tile";
  }
  return "plan    layer inputs kept on the GPU, layers recomputed";
}

// Formats what the plan costs in time, for using less memory.
std::string PriceLine(const stream::StepPrice& p, const BannerFacts& f) {
  std::string text =
      fmt::format("price   activations: {} in HBM, {} in host memory, ",
                  FormatBytes(p.hbm), FormatBytes(p.host));
  if (p.recompute_s <= 0) return text + "none computed again";
  const double seconds = p.recompute_s * static_cast<double>(f.sequences);
  text += fmt::format("{} computed again in {}", FormatBytes(p.recomputed),
                      Duration(seconds));
  if (f.compute_s > 0) {
    text += fmt::format(" ({} of the step's compute)",
                        Percent(seconds / f.compute_s));
  }
  return text + fmt::format(" for {:.3g} times the tokens", p.length_gain());
}

std::string MemoryLine(const BannerFacts& f) {
  std::string text = fmt::format(
      "memory  {}: {} of {} leased per rank{}; ", f.gpu, FormatBytes(f.leased),
      FormatBytes(f.gpu_total),
      f.asked ? "" : " (all that was free for it; --hbm SIZE takes less)");
  if (f.transient.has_value()) {
    text += fmt::format("{} in use, {} more in a step", FormatBytes(f.used),
                        FormatBytes(*f.transient));
  } else {
    text += fmt::format(
        "{} in use, what activations need is not known before the first step",
        FormatBytes(f.used));
  }
  if (f.host <= Bytes(0)) return text + "; no host memory";
  return text + fmt::format("; host {} of {}{}", FormatBytes(f.host),
                            FormatBytes(f.host_limit),
                            f.host_asked ? " (its share of --host)" : "");
}

}  // namespace

std::string Count(double number) {
  struct Unit {
    double size;
    const char* name;
  };
  for (const Unit& unit : {Unit{1e9, "B"}, Unit{1e6, "M"}, Unit{1e3, "k"}}) {
    if (number < unit.size) continue;
    const double count = number / unit.size;
    return count < 100 ? fmt::format("{:.3g}{}", count, unit.name)
                       : fmt::format("{:.0f}{}", count, unit.name);
  }
  return fmt::format("{:.0f}", number);
}

std::string PlanInWords(const std::vector<plan::ClassPlan>& classes) {
  // In the order of each treatment's first class.
  std::vector<std::pair<std::string, std::string>> groups;
  for (const plan::ClassPlan& c : classes) {
    const std::string treatment = Treatment(c);
    const auto group =
        std::find_if(groups.begin(), groups.end(),
                     [&](const auto& g) { return g.first == treatment; });
    if (group == groups.end()) {
      groups.emplace_back(treatment, c.name);
    } else {
      group->second += ", " + c.name;
    }
  }
  std::string text;
  for (const auto& [treatment, names] : groups) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", treatment, names);
  }
  return text;
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
  for (const plan::LayerKind& kind : profile.kinds) {
    const auto layers = static_cast<double>(kind.layers);
    in += layers *
          static_cast<double>(
              (kind.forward_h2d_fixed + kind.backward_h2d_fixed).count());
    out += layers *
           static_cast<double>(
               (kind.forward_d2h_fixed + kind.backward_d2h_fixed).count());
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
  const auto seconds = [](double bytes, double speed) {
    return speed > 0 ? bytes / speed : 0;
  };
  return std::max(seconds(in, h2d_bytes_per_second),
                  seconds(out, d2h_bytes_per_second));
}

}  // namespace sluice::train
