#include "client/ctl/desk/train_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "client/ctl/format.h"
#include "client/ctl/table.h"

namespace sluice::ctl {
namespace {

using planner::train::LayerTimes;
using planner::train::PassTimes;
using planner::train::TokensText;

// All drawings are this wide, in their own pixels.
constexpr double kChartWidth = 960;

std::string AxisAmount(double value, bool bytes) {
  if (bytes) return Size(int64_t(value));
  return value < 1 ? fmt::format("{:.3g} ms", 1e3 * value) : Span(value);
}

std::string SvgText(double x, double y, const std::string& style,
                    const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>",
                     x, y, style, EscapeHtml(text));
}

std::string SvgLine(double x1, double y1, double x2, double y2,
                    const std::string& style) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
      "class=\"{}\"/>",
      x1, y1, x2, y2, style);
}

std::string Box(double x, double y, double width, double height,
                const std::string& part, const std::string& title) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" "
      "class=\"c {}\"><title>{}</title></rect>",
      x, y, width, height, ColourOf(part), EscapeHtml(title));
}

std::string Svg(double height, const std::string& label,
                const std::string& inside) {
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>",
      kChartWidth, height, EscapeHtml(label), inside);
}

// 1, 2 or 5 times a power of ten, so that about `count` fit in `range`.
double NiceStep(double range, double count) {
  const double rough = range / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= rough) return step * power;
  }
  return 10 * power;
}

// --- one layer's timeline --------------------------------------------------

constexpr double kLaneLeft = 118;
constexpr double kLaneHeight = 26, kLaneGap = 10, kLaneTop = 34;

class Timeline {
 public:
  explicit Timeline(const LayerTimes& layer) {
    forward_ = layer.forward.total();
    back_ = layer.recompute.total() + layer.backward.total();
    scale_ = (kChartWidth - kLaneLeft - 8) / std::max(forward_ + back_, 1e-12);
    Pass("forward", 0, layer.forward, {});
    Pass("backward", forward_, layer.backward, layer.recompute);
  }

  std::string Svg() const {
    constexpr const char* kLanes[] = {"compute", "network", "to host",
                                      "from host"};
    std::string text = body_;
    for (int lane = 0; lane < 4; ++lane) {
      text += SvgText(kLaneLeft - 12, Top(lane) + 17, "e", kLanes[lane]);
    }
    const double bottom = Top(4);
    const double middle = X(forward_);
    text += SvgLine(middle, 12, middle, bottom, "rule");
    text +=
        SvgText(kLaneLeft, 20, "s", "forward  " + AxisAmount(forward_, false));
    text +=
        SvgText(middle + 8, 20, "s", "backward  " + AxisAmount(back_, false));
    return ctl::Svg(bottom + 6, "one layer's timeline", text);
  }

 private:
  double X(double seconds) const { return kLaneLeft + seconds * scale_; }
  static double Top(int lane) {
    return kLaneTop + lane * (kLaneHeight + kLaneGap);
  }

  void Add(int lane, double& at, double seconds, const char* part) {
    if (seconds <= 0) return;
    body_ += Box(X(at), Top(lane), std::max(seconds * scale_, 0.5), kLaneHeight,
                 part, PartTitle(part) + ": " + AxisAmount(seconds, false));
    at += seconds;
  }

  void Pass(const char* name, double start, const PassTimes& pass,
            const PassTimes& before) {
    double at = start;
    Add(0, at, before.compute(), "recompute");
    double sent = at;
    Add(1, sent, before.network, "exposed_network");
    at += before.network;
    Add(0, at, pass.matmul, "matmul");
    Add(0, at, pass.attention, "attention");
    Add(0, at, pass.elementwise, "elementwise");
    sent = at;
    Add(1, sent, pass.network, "exposed_network");
    at += pass.network;
    Add(0, at, pass.exposed_copy + before.exposed_copy, "exposed_copy");
    // A link is busy for so long, spread over the pass.
    const double length = at - start;
    Copy(2, start, length, pass.copy_out + before.copy_out, name);
    Copy(3, start, length, pass.copy_in + before.copy_in, name);
  }

  // The lane's share of the pass, as a bar of that height.
  void Copy(int lane, double start, double length, double busy,
            const char* name) {
    if (busy <= 0 || length <= 0) return;
    const double share = std::min(busy / length, 1.0);
    const double height = std::max(kLaneHeight * share, 1.5);
    body_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" "
        "class=\"lane\"/>",
        X(start), Top(lane), length * scale_, kLaneHeight);
    body_ += Box(X(start), Top(lane) + kLaneHeight - height, length * scale_,
                 height, "copy",
                 fmt::format("{}: the link is busy {:.0f} % of the pass ({})",
                             name, 100 * share, AxisAmount(busy, false)));
    body_ += SvgText(X(start) + 6, Top(lane) + 17, "busy",
                     fmt::format("{:.0f} % busy", 100 * share));
  }

  double forward_ = 0, back_ = 0, scale_ = 1;
  std::string body_;
};

// --- MFU over length -------------------------------------------------------

constexpr double kPlotLeft = 52, kPlotRight = 120, kPlotTop = 14;
constexpr double kChartPlotHeight = 270;

class MfuPlot {
 public:
  MfuPlot(const std::vector<MfuCurve>& curves, int64_t asked,
          std::optional<double> asked_mfu) {
    low_ = high_ = std::log2(double(asked));
    most_ = asked_mfu.value_or(0);
    for (const MfuCurve& curve : curves) {
      for (const MfuPoint& point : curve.points) {
        low_ = std::min(low_, std::log2(double(point.tokens)));
        high_ = std::max(high_, std::log2(double(point.tokens)));
        most_ = std::max(most_, point.mfu);
      }
    }
    high_ = std::max(high_, low_ + 1);
    most_ = std::max(most_ * 1.12, 0.05);
  }

  std::string Axes() const {
    std::string text;
    const double step = NiceStep(most_, 5);
    for (double value = 0; value <= most_; value += step) {
      text += SvgLine(kPlotLeft, Y(value), kChartWidth - kPlotRight, Y(value),
                      "grid");
      text += SvgText(kPlotLeft - 8, Y(value) + 4, "e",
                      fmt::format("{:.0f} %", 100 * value));
    }
    for (double power = std::ceil(low_); power <= high_; ++power) {
      text += SvgText(At(power), kPlotTop + kChartPlotHeight + 20, "m",
                      TokensText(int64_t{1} << int(power)));
    }
    return text + SvgText((kPlotLeft + kChartWidth - kPlotRight) / 2,
                          kPlotTop + kChartPlotHeight + 42, "m",
                          "tokens of a sequence");
  }

  std::string Curve(const MfuCurve& curve) const {
    if (curve.points.empty()) return "";
    std::string path;
    for (const MfuPoint& point : curve.points) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L",
                          X(point.tokens), Y(point.mfu));
    }
    const MfuPoint& last = curve.points.back();
    const char* chosen = curve.chosen ? " chosen" : "";
    const std::string colour = "m-" + curve.method + chosen;
    return fmt::format(
        "<path d=\"{}\" class=\"curve {}\"><title>{}: up to {} tokens</title>"
        "</path><circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" class=\"dot "
        "{}\"/>",
        path, colour, curve.method, TokensText(last.tokens), X(last.tokens),
        Y(last.mfu), curve.chosen ? 4.5 : 3, colour);
  }

  // Names right of the plot, apart from each other.
  std::string Names(std::vector<const MfuCurve*> curves) const {
    std::erase_if(curves, [](const auto* c) { return c->points.empty(); });
    std::sort(curves.begin(), curves.end(), [](const auto* a, const auto* b) {
      return a->points.back().mfu > b->points.back().mfu;
    });
    std::string text;
    double lowest = -1e9;
    for (const MfuCurve* curve : curves) {
      const MfuPoint& last = curve->points.back();
      const double y = std::max(Y(last.mfu) + 4, lowest + 17);
      lowest = y;
      text +=
          SvgText(kChartWidth - kPlotRight + 12, y,
                  "name m-" + curve->method + (curve->chosen ? " chosen" : ""),
                  curve->method + " " + TokensText(last.tokens));
    }
    return text;
  }

  std::string Asked(int64_t tokens, std::optional<double> mfu) const {
    const std::string rule = SvgLine(X(tokens), kPlotTop, X(tokens),
                                     kPlotTop + kChartPlotHeight, "rule dash");
    if (!mfu) {
      return rule + SvgText(X(tokens) - 6, kPlotTop + 12, "e limit-text",
                            TokensText(tokens) + " does not fit");
    }
    return rule +
           fmt::format(
               "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6.5\" "
               "class=\"asked\"><title>asked: {} tokens, {:.2f} %</title>"
               "</circle>",
               X(tokens), Y(*mfu), TokensText(tokens), 100 * *mfu);
  }

 private:
  double At(double power) const {
    return kPlotLeft + (power - low_) / (high_ - low_) *
                           (kChartWidth - kPlotLeft - kPlotRight);
  }
  double X(int64_t tokens) const { return At(std::log2(double(tokens))); }
  double Y(double mfu) const {
    return kPlotTop + kChartPlotHeight * (1 - mfu / most_);
  }

  double low_, high_, most_;
};

}  // namespace

std::string ColourOf(const std::string& part) { return "p-" + part; }

std::string PartTitle(const std::string& part) {
  std::string title = part;
  std::replace(title.begin(), title.end(), '_', ' ');
  return title;
}

std::string StackedBar(const NamedParts& parts, double whole, double limit,
                       const std::string& limit_text, bool bytes) {
  constexpr double kTop = 22, kHeight = 44;
  double sum = 0;
  for (const auto& [name, value] : parts) sum += value;
  const double scale = kChartWidth / std::max({whole, sum, limit, 1e-12});
  std::string text = fmt::format(
      "<rect x=\"0\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" "
      "class=\"lane\"/>",
      kTop, std::max(whole, limit) * scale, kHeight);
  double x = 0;
  for (const auto& [name, value] : parts) {
    if (value <= 0) continue;
    const double width = value * scale;
    const std::string title =
        fmt::format("{}: {} ({:.1f} %)", PartTitle(name),
                    AxisAmount(value, bytes), 100 * value / sum);
    text += Box(x, kTop, width, kHeight, name, title);
    const std::string label = PartTitle(name);
    if (width > 9 + 7.4 * double(label.size())) {
      text += SvgText(x + 9, kTop + 27, "in", label);
    }
    x += width;
  }
  if (limit > 0) {
    const double at = std::min(limit * scale, kChartWidth - 1);
    text += SvgLine(at, kTop - 6, at, kTop + kHeight + 6, "limit");
    text += SvgText(at - 6, kTop - 8, "e limit-text", limit_text);
  }
  return Svg(kTop + kHeight + 8, "stacked bar", text);
}

std::string LayerTimeline(const LayerTimes& layer) {
  return Timeline(layer).Svg();
}

std::string MfuChart(const std::vector<MfuCurve>& curves, int64_t asked,
                     std::optional<double> asked_mfu) {
  const MfuPlot plot(curves, asked, asked_mfu);
  std::string text = plot.Axes();
  std::vector<const MfuCurve*> named;
  for (const bool chosen : {false, true}) {  // the chosen one on top
    for (const MfuCurve& curve : curves) {
      if (curve.chosen != chosen) continue;
      text += plot.Curve(curve);
      named.push_back(&curve);
    }
  }
  text += plot.Asked(asked, asked_mfu) + plot.Names(named);
  return Svg(kPlotTop + kChartPlotHeight + 52, "MFU over length", text);
}

}  // namespace sluice::ctl
