#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/text/format.h"

namespace sluice::ctl {
namespace {

using planner::MemoryPlan;
using planner::NamedTrace;

constexpr int kWidth = 1280, kHeight = 800;
constexpr int kLeft = 92, kRight = 28, kTop = 160, kBottom = 92;
constexpr int kPlotWidth = kWidth - kLeft - kRight;
constexpr int kPlotHeight = kHeight - kTop - kBottom;
// The strip of live bytes above the plot.
constexpr int kLiveTop = 84, kLiveBottom = 128;
// Room above the peak for its label.
constexpr double kHeadroom = 1.045;

// Colours show the lifetime, short to long.
constexpr int kColours = 6;

// Buffers below these sizes (in pixels) are merged into pixels, without titles,
// so that a browser can open the picture of a million buffers.
constexpr double kLeastSide = 1.6;
constexpr double kLeastArea = 14;

constexpr const char* kSvgStyle = R"(<style>
svg{--page:#fff;--ink:#1d2330;--soft:#5b6475;--line:#e3e6ec;--peak:#c2273d}
@media(prefers-color-scheme:dark){svg{--page:#12151c;--ink:#eceff5;
--soft:#9aa4b6;--line:#272d39;--peak:#ff7085}}
text{font:12px system-ui,sans-serif;fill:var(--soft)}
.h{font-size:22px;fill:var(--ink)}.e{text-anchor:end}.m{text-anchor:middle}
.g{stroke:var(--line)}.a{stroke:var(--soft)}
rect:hover{stroke:var(--ink)}
.p{stroke:var(--peak)}.q{stroke-dasharray:7 5}.t{fill:var(--peak)}
.l{fill:var(--soft);fill-opacity:.3}
.c0{fill:#f9b24e}.c1{fill:#f08a5b}.c2{fill:#d95f7c}
.c3{fill:#a0559f}.c4{fill:#6457a6}.c5{fill:#34659f}
</style>
)";

// Formats "12.3", and "12" instead of "12.0".
std::string Pixels(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

int64_t Lifetime(const plan::Buffer& b) { return b.upper - b.lower; }

// The longest lifetime that each colour stands for. These limits grow by a
// constant factor from the shortest to the longest lifetime of the trace, so
// that every picture uses the whole range of colours.
using LifetimeLimits = std::array<int64_t, kColours>;
LifetimeLimits LimitsOf(const std::vector<plan::Buffer>& buffers) {
  LifetimeLimits limits = {};
  if (buffers.empty()) return limits;
  const auto [least, most] = std::ranges::minmax(buffers, {}, Lifetime);
  const double shortest = Lifetime(least);
  const double ratio = Lifetime(most) / shortest;
  for (int k = 1; k < kColours; ++k) {
    limits[k - 1] = int64_t(shortest * std::pow(ratio, double(k) / kColours));
  }
  limits.back() = Lifetime(most);
  return limits;
}

// Returns the step of an axis with about `wanted` marks up to `most`: 1, 2 or 5
// times a power of ten, or in base 2 a power of two.
double Step(double most, int wanted, int base) {
  const double raw = std::max(most / wanted, 1.0);
  if (base == 2) return std::exp2(std::ceil(std::log2(raw)));
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double nice : {1.0, 2.0, 5.0}) {
    if (raw <= nice * power) return nice * power;
  }
  return 10 * power;
}

class Picture {
 public:
  Picture(const NamedTrace& named, const MemoryPlan& plan)
      : named_(named), plan_(plan), limits_(LimitsOf(named.trace.buffers)) {
    const auto& buffers = named.trace.buffers;
    if (buffers.empty()) return;
    first_ = std::ranges::min(buffers, {}, &plan::Buffer::lower).lower;
    last_ = std::ranges::max(buffers, {}, &plan::Buffer::upper).upper;
  }

  std::string Text() {
    const std::string headline = EscapeHtml(Headline());
    Put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
        "width=\"{0}\" height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n"
        "<title>{2}</title>\n",
        kWidth, kHeight, headline);
    text_ += kSvgStyle;
    Put("<rect width=\"{}\" height=\"{}\" fill=\"var(--page)\"/>\n"
        "<text class=\"h\" x=\"{}\" y=\"40\">{}</text>\n"
        "<text x=\"{}\" y=\"64\">{}</text>\n",
        kWidth, kHeight, kLeft, headline, kLeft, EscapeHtml(Subtitle()));
    Axes();
    Buffers();
    Live();
    Lines();
    Legend();
    return std::move(text_) + "</svg>\n";
  }

 private:
  template <typename... Args>
  void Put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format,
                   std::forward<Args>(args)...);
  }

  // Only a gap of 0 is formatted as "0 %".
  std::string Gap() const {
    const double gap = plan_.gap();
    if (gap <= 0) return "0 %";
    return gap < 0.0001 ? "below 0.01 %" : fmt::format("{:.2g} %", 100 * gap);
  }

  std::string Headline() const {
    return fmt::format(
        "Peak {}, {}", Size(plan_.peak.count()),
        plan_.optimal() ? "proved optimal" : Gap() + " above the proved bound");
  }

  std::string Subtitle() const {
    return fmt::format(
        "{} buffers{}{} · bound {} · gap {} · most alive at once {} · {}",
        Count(plan_.offsets.size()), named_.source.empty() ? "" : " · ",
        named_.source, Size(plan_.lower_bound.count()), Gap(),
        Size(plan_.max_live.count()),
        plan_.method.empty() ? "nothing to place" : plan_.method);
  }

  double Duration() const { return std::max<int64_t>(last_ - first_, 1); }
  // Returns the peak, but at least 1, because divisions use it.
  double Top() const { return std::max<int64_t>(plan_.peak.count(), 1); }
  double X(int64_t time) const {
    return kLeft + kPlotWidth * double(time - first_) / Duration();
  }
  double Y(double bytes) const {
    return kTop + kPlotHeight * (1 - bytes / (Top() * kHeadroom));
  }

  void Axes() {
    const double step = Step(Top(), 7, 2);
    for (double bytes = 0; bytes <= plan_.peak.count(); bytes += step) {
      const std::string y = Pixels(Y(bytes));
      Put("<path class=\"{}\" d=\"M{} {}H{}\"/><text class=\"e\" x=\"{}\" "
          "y=\"{}\">{}</text>\n",
          bytes == 0 ? "a" : "g", kLeft, y, kWidth - kRight, kLeft - 10,
          Pixels(Y(bytes) + 4), Size(int64_t(bytes)));
    }
    const double tick = Step(Duration(), 9, 10);
    const int bottom = kTop + kPlotHeight;
    for (double time = std::ceil(first_ / tick) * tick; time <= last_;
         time += tick) {
      const std::string x = Pixels(X(int64_t(time)));
      Put("<path class=\"a\" d=\"M{} {}v5\"/><text class=\"m\" x=\"{}\" "
          "y=\"{}\">{}</text>\n",
          x, bottom, x, bottom + 20, Count(time));
    }
    Put("<text class=\"m\" x=\"{}\" y=\"{}\">time, in {}</text>\n",
        kLeft + kPlotWidth / 2, bottom + 42,
        named_.time_unit == "time" ? "the trace's units" : named_.time_unit);
    Put("<text class=\"m\" transform=\"translate(20 {}) rotate(-90)\">address"
        "</text>\n",
        kTop + kPlotHeight / 2);
  }

  void Buffers() {
    // The colour of the small buffer that covers each pixel, or -1.
    std::vector<int8_t> pixels(kPlotWidth * kPlotHeight, -1);
    for (size_t k = 0; k < plan_.offsets.size(); ++k) {
      const plan::Buffer& b = named_.trace.buffers[k];
      if (b.size == Bytes(0)) continue;
      const double offset = plan_.offsets[k].count();
      const double x = X(b.lower), width = X(b.upper) - x;
      const double y = Y(offset + double(b.size.count()));
      const double height = Y(offset) - y;
      const auto colour = std::ranges::count_if(
          limits_, [&](int64_t limit) { return Lifetime(b) > limit; });
      if (std::min(width, height) < kLeastSide || width * height < kLeastArea) {
        Fill(x - kLeft, y - kTop, width, height, colour, pixels);
        continue;
      }
      Put("<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"{}\" "
          "height=\"{}\"><title>{}: {}, alive {} to {}, at {}</title>"
          "</rect>\n",
          colour, Pixels(x), Pixels(y), Pixels(width), Pixels(height),
          EscapeHtml(named_.names[k]), Size(b.size.count()), Count(b.lower),
          Count(b.upper), Size(plan_.offsets[k].count()));
    }
    PutPixels(pixels);
  }

  static void Fill(double x, double y, double width, double height,
                   int8_t colour, std::vector<int8_t>& pixels) {
    const int left = std::clamp(int(x), 0, kPlotWidth - 1);
    const int top = std::clamp(int(y), 0, kPlotHeight - 1);
    const int right = std::clamp(int(x + width), left + 1, kPlotWidth);
    const int bottom = std::clamp(int(y + height), top + 1, kPlotHeight);
    for (int column = left; column < right; ++column) {
      std::fill_n(pixels.begin() + column * kPlotHeight + top, bottom - top,
                  colour);
    }
  }

  void PutPixels(const std::vector<int8_t>& pixels) {
    std::array<std::string, kColours> runs;
    for (int x = 0; x < kPlotWidth; ++x) {
      const int8_t* const column = pixels.data() + x * kPlotHeight;
      for (int y = 0, end = 0; y < kPlotHeight; y = end) {
        while (end < kPlotHeight && column[end] == column[y]) ++end;
        if (column[y] < 0) continue;
        runs[column[y]] +=
            fmt::format("M{} {}h1v{}h-1z", kLeft + x, kTop + y, end - y);
      }
    }
    for (int colour = 0; colour < kColours; ++colour) {
      if (runs[colour].empty()) continue;
      Put("<path class=\"c{}\" d=\"{}\"/>\n", colour, runs[colour]);
    }
  }

  // Draws the live bytes; each column shows their maximum.
  void Live() {
    std::map<int64_t, int64_t> change;
    const Bytes unit = named_.trace.alignment;
    for (const plan::Buffer& b : named_.trace.buffers) {
      change[b.lower] += RoundUp(b.size, unit).count();
      change[b.upper] -= RoundUp(b.size, unit).count();
    }
    std::vector<double> most(kPlotWidth, 0);
    int64_t alive = 0;
    int from = 0;
    for (const auto& [time, by] : change) {
      const int to = Column(time);
      for (int x = from; x <= to; ++x) {
        most[x] = std::max<double>(most[x], alive);
      }
      alive += by;
      from = to;
    }
    const double top = std::max<int64_t>(plan_.max_live.count(), 1);
    const auto y = [&](double bytes) {
      return Pixels(kLiveBottom - (kLiveBottom - kLiveTop) * bytes / top);
    };
    std::string path = fmt::format("M{} {}", kLeft, kLiveBottom);
    for (size_t x = 0; x < most.size(); ++x) {
      if (x == 0 || most[x - 1] != most[x]) path += "V" + y(most[x]);
      if (x + 1 == most.size() || most[x + 1] != most[x]) {
        path += fmt::format("H{}", kLeft + x + 1);
      }
    }
    Put("<path class=\"l\" d=\"{}V{}z\"/>\n"
        "<path class=\"g\" d=\"M{} {}H{}\"/>\n",
        path, kLiveBottom, kLeft, kLiveTop, kWidth - kRight);
    Put("<text class=\"e\" x=\"{0}\" y=\"{1}\">{2}</text>"
        "<text class=\"e\" x=\"{0}\" y=\"{3}\">alive</text>\n",
        kLeft - 10, kLiveTop + 5, Size(plan_.max_live.count()), kLiveBottom);
  }

  int Column(int64_t time) const {
    return std::clamp(int(X(time) - kLeft), 0, kPlotWidth - 1);
  }

  void Lines() {
    if (plan_.optimal()) return Line(plan_.peak, "p", "peak = bound", "", -6);
    Line(plan_.peak, "p", "peak", fmt::format(" (+{})", Gap()), -6);
    Line(plan_.lower_bound, "p q", "bound", "", 16);
  }

  void Line(Bytes at, const char* kind, const char* name,
            const std::string& more, int dy) {
    const double y = Y(at.count());
    Put("<path class=\"{}\" d=\"M{} {}H{}\"/><text class=\"t e\" x=\"{}\" "
        "y=\"{}\">{} {}{}</text>\n",
        kind, kLeft, Pixels(y), kWidth - kRight, kWidth - kRight - 4,
        Pixels(y + dy), name, Size(at.count()), more);
  }

  void Legend() {
    const int y = kHeight - 22;
    int x = kLeft;
    const std::string unit =
        named_.time_unit == "time" ? "" : " " + named_.time_unit;
    Put("<text x=\"{}\" y=\"{}\">alive for up to</text>\n", x, y);
    x += 92;
    int64_t before = -1;
    for (int c = 0; c < kColours; ++c) {
      if (limits_[c] == before) continue;  // no lifetime has this colour
      before = limits_[c];
      const std::string label = Count(before) + (c + 1 < kColours ? "" : unit);
      Put("<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" "
          "rx=\"2\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
          c, x, y - 10, x + 18, y, label);
      x += 38 + int(label.size()) * 7;
    }
  }

  const NamedTrace& named_;
  const MemoryPlan& plan_;
  const LifetimeLimits limits_;
  int64_t first_ = 0, last_ = 1;
  std::string text_;
};

}  // namespace

std::string PlanSvg(const NamedTrace& named, const MemoryPlan& plan) {
  return Picture(named, plan).Text();
}

}  // namespace sluice::ctl
