#include "client/ctl/desk/plan_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "client/ctl/text/format.h"

namespace sluice::ctl {
namespace {

using planner::MemoryPlan;
using planner::NamedTrace;

// The size of the drawing in its coordinates.
constexpr int kWidth = 1280, kHeight = 800;
constexpr int kLeft = 92, kRight = 28, kTop = 160, kBottom = 92;
constexpr int kPlotWidth = kWidth - kLeft - kRight;
constexpr int kPlotHeight = kHeight - kTop - kBottom;
// The strip of live bytes above the plot.
constexpr int kLiveTop = 84, kLiveBottom = 128;
// Room above the peak for its label.
constexpr double kHeadroom = 1.045;

// By lifetime, short to long.
constexpr int kColours = 6;

// Smaller buffers are merged into pixels, without titles, so that a browser can
// open the picture of a million buffers.
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

// Formats "99.8 %". Only an exact share is formatted as "0 %" or "100 %".
std::string SvgPercent(double share) {
  if (share <= 0) return "0 %";
  return share < 0.0001 ? "below 0.01 %" : fmt::format("{:.2g} %", 100 * share);
}

// Classes of lifetimes. Their limits grow by a constant factor from the
// shortest to the longest one of the trace, so that every picture uses all
// colours.
class Lifetimes {
 public:
  explicit Lifetimes(const std::vector<plan::Buffer>& buffers) {
    if (buffers.empty()) return;
    int64_t shortest = buffers[0].upper - buffers[0].lower;
    longest_ = shortest;
    for (const plan::Buffer& b : buffers) {
      shortest = std::min(shortest, b.upper - b.lower);
      longest_ = std::max(longest_, b.upper - b.lower);
    }
    const double ratio =
        static_cast<double>(longest_) / static_cast<double>(shortest);
    for (int k = 1; k < kColours; ++k) {
      limits_[static_cast<size_t>(k) - 1] = static_cast<int64_t>(
          static_cast<double>(shortest) *
          std::pow(ratio, static_cast<double>(k) / kColours));
    }
  }

  int ColourOf(const plan::Buffer& b) const {
    int colour = 0;
    for (const int64_t limit : limits_) colour += b.upper - b.lower > limit;
    return colour;
  }
  // Returns the longest lifetime of a class.
  int64_t Limit(int colour) const {
    return colour + 1 < kColours ? limits_[static_cast<size_t>(colour)]
                                 : longest_;
  }

 private:
  std::array<int64_t, kColours - 1> limits_ = {};
  int64_t longest_ = 0;
};

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
      : named_(named), plan_(plan), lifetimes_(named.trace.buffers) {
    const auto& buffers = named.trace.buffers;
    if (buffers.empty()) return;
    first_ = buffers[0].lower;
    last_ = buffers[0].upper;
    for (const plan::Buffer& b : buffers) {
      first_ = std::min(first_, b.lower);
      last_ = std::max(last_, b.upper);
    }
  }

  std::string Text() {
    Put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
        "width=\"{0}\" height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n"
        "<title>{2}</title>\n",
        kWidth, kHeight, EscapeHtml(Headline()));
    text_ += kSvgStyle;
    Put("<rect width=\"{}\" height=\"{}\" fill=\"var(--page)\"/>\n", kWidth,
        kHeight);
    Put("<text class=\"h\" x=\"{}\" y=\"40\">{}</text>\n", kLeft,
        EscapeHtml(Headline()));
    Put("<text x=\"{}\" y=\"64\">{}</text>\n", kLeft, EscapeHtml(Subtitle()));
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

  std::string Headline() const {
    const std::string peak = "Peak " + Size(plan_.peak.count());
    if (plan_.optimal()) return peak + ", proved optimal";
    return fmt::format("{}, {} above the proved bound", peak,
                       SvgPercent(plan_.gap()));
  }

  std::string Subtitle() const {
    return fmt::format(
        "{} buffers{}{} · bound {} · gap {} · most alive at once {} · {}",
        Count(static_cast<double>(plan_.offsets.size())),
        named_.source.empty() ? "" : " · ", named_.source,
        Size(plan_.lower_bound.count()), SvgPercent(plan_.gap()),
        Size(plan_.max_live.count()),
        plan_.method.empty() ? "nothing to place" : plan_.method);
  }

  double X(int64_t time) const {
    const double span =
        std::max<double>(static_cast<double>(last_ - first_), 1);
    return kLeft + kPlotWidth * static_cast<double>(time - first_) / span;
  }
  double Y(double bytes) const {
    return kTop + kPlotHeight * (1 - bytes / Top());
  }
  double Top() const {
    const double peak = static_cast<double>(plan_.peak.count());
    return std::max(peak, 1.0) * kHeadroom;
  }

  void Axes() {
    const double top = static_cast<double>(plan_.peak.count());
    const double step = Step(std::max(top, 1.0), 7, 2);
    for (double bytes = 0; bytes <= top; bytes += step) {
      const std::string y = Pixels(Y(bytes));
      Put("<path class=\"{}\" d=\"M{} {}H{}\"/><text class=\"e\" x=\"{}\" "
          "y=\"{}\">{}</text>\n",
          bytes == 0 ? "a" : "g", kLeft, y, kWidth - kRight, kLeft - 10,
          Pixels(Y(bytes) + 4), Size(static_cast<int64_t>(bytes)));
    }
    const double tick =
        Step(std::max<double>(static_cast<double>(last_ - first_), 1), 9, 10);
    const int bottom = kTop + kPlotHeight;
    for (double time = std::ceil(static_cast<double>(first_) / tick) * tick;
         time <= static_cast<double>(last_); time += tick) {
      const std::string x = Pixels(X(static_cast<int64_t>(time)));
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
    // The colour of small buffers, or -1.
    std::vector<int8_t> pixels(kPlotWidth * kPlotHeight, -1);
    for (size_t k = 0; k < plan_.offsets.size(); ++k) {
      const plan::Buffer& b = named_.trace.buffers[k];
      if (b.size == Bytes(0)) continue;
      const double offset = static_cast<double>(plan_.offsets[k].count());
      const double x = X(b.lower), width = X(b.upper) - x;
      const double y = Y(offset + static_cast<double>(b.size.count()));
      const double height = Y(offset) - y;
      const int colour = lifetimes_.ColourOf(b);
      if (std::min(width, height) < kLeastSide || width * height < kLeastArea) {
        Fill(x - kLeft, y - kTop, width, height, colour, pixels);
        continue;
      }
      Put("<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"{}\" "
          "height=\"{}\"><title>{}: {}, alive {} to {}, at {}</title>"
          "</rect>\n",
          colour, Pixels(x), Pixels(y), Pixels(width), Pixels(height),
          EscapeHtml(named_.names[k]), Size(b.size.count()),
          Count(static_cast<double>(b.lower)),
          Count(static_cast<double>(b.upper)), Size(plan_.offsets[k].count()));
    }
    PutPixels(pixels);
  }

  static void Fill(double x, double y, double width, double height, int colour,
                   std::vector<int8_t>& pixels) {
    const auto left = std::clamp(static_cast<int>(x), 0, kPlotWidth - 1);
    const auto top = std::clamp(static_cast<int>(y), 0, kPlotHeight - 1);
    const int right =
        std::clamp(static_cast<int>(x + width), left + 1, kPlotWidth);
    const int bottom =
        std::clamp(static_cast<int>(y + height), top + 1, kPlotHeight);
    for (int column = left; column < right; ++column) {
      std::fill(pixels.begin() + column * kPlotHeight + top,
                pixels.begin() + column * kPlotHeight + bottom,
                static_cast<int8_t>(colour));
    }
  }

  // Draws each column's runs of equal colour.
  void PutPixels(const std::vector<int8_t>& pixels) {
    std::array<std::string, kColours> runs;
    for (int x = 0; x < kPlotWidth; ++x) {
      const int8_t* const column = pixels.data() + x * kPlotHeight;
      for (int y = 0, end = 0; y < kPlotHeight; y = end) {
        while (end < kPlotHeight && column[end] == column[y]) ++end;
        if (column[y] < 0) continue;
        fmt::format_to(std::back_inserter(runs[static_cast<size_t>(column[y])]),
                       "M{} {}h1v{}h-1z", kLeft + x, kTop + y, end - y);
      }
    }
    for (size_t colour = 0; colour < kColours; ++colour) {
      if (runs[colour].empty()) continue;
      Put("<path class=\"c{}\" d=\"{}\"/>\n", colour, runs[colour]);
    }
  }

  // Each pixel shows the maximum of the live bytes.
  void Live() {
    std::map<int64_t, int64_t> change;
    const Bytes unit = named_.trace.alignment;
    for (const plan::Buffer& b : named_.trace.buffers) {
      change[b.lower] += RoundUp(b.size, unit).count();
      change[b.upper] -= RoundUp(b.size, unit).count();
    }
    std::vector<double> most(kPlotWidth, 0);
    int64_t alive = 0;
    for (auto at = change.begin(); at != change.end(); ++at) {
      alive += at->second;
      const auto next = std::next(at);
      const int from = Column(at->first);
      const int to = next == change.end() ? from : Column(next->first);
      for (int x = from; x <= to; ++x) {
        most[static_cast<size_t>(x)] =
            std::max(most[static_cast<size_t>(x)], static_cast<double>(alive));
      }
    }
    LiveStrip(most);
  }

  void LiveStrip(const std::vector<double>& most) {
    const double top =
        std::max<double>(static_cast<double>(plan_.max_live.count()), 1);
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
    return std::clamp(static_cast<int>(X(time) - kLeft), 0, kPlotWidth - 1);
  }

  // Draws the peak, and the bound if it differs.
  void Lines() {
    const double peak = static_cast<double>(plan_.peak.count());
    const double bound = static_cast<double>(plan_.lower_bound.count());
    Line(peak, "p",
         plan_.optimal()
             ? "peak = bound " + Size(plan_.peak.count())
             : fmt::format("peak {} (+{})", Size(plan_.peak.count()),
                           SvgPercent(plan_.gap())),
         -6);
    if (!plan_.optimal()) {
      Line(bound, "p q", "bound " + Size(plan_.lower_bound.count()), 16);
    }
  }

  void Line(double bytes, const char* kind, const std::string& label, int dy) {
    Put("<path class=\"{}\" d=\"M{} {}H{}\"/><text class=\"t e\" x=\"{}\" "
        "y=\"{}\">{}</text>\n",
        kind, kLeft, Pixels(Y(bytes)), kWidth - kRight, kWidth - kRight - 4,
        Pixels(Y(bytes) + dy), label);
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
      if (lifetimes_.Limit(c) == before) continue;  // an empty class
      before = lifetimes_.Limit(c);
      const std::string label =
          Count(static_cast<double>(before)) + (c + 1 < kColours ? "" : unit);
      Put("<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" "
          "rx=\"2\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
          c, x, y - 10, x + 18, y, label);
      x += 38 + static_cast<int>(label.size()) * 7;
    }
  }

  const NamedTrace& named_;
  const MemoryPlan& plan_;
  const Lifetimes lifetimes_;
  int64_t first_ = 0, last_ = 1;
  std::string text_;
};

}  // namespace

std::string PlanSvg(const NamedTrace& named, const MemoryPlan& plan) {
  return Picture(named, plan).Text();
}

}  // namespace sluice::ctl
