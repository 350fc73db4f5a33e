#include "client/ctl/desk/plan_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "client/ctl/desk/coverage_grid.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"

namespace sluice::ctl {
namespace {

using planner::MemoryPlan;
using planner::NamedTrace;

// The drawing, in its own pixels.
constexpr int kWidth = 1280, kHeight = 800;
constexpr int kLeft = 92, kRight = 28, kTop = 160, kBottom = 92;
constexpr int kPlotWidth = kWidth - kLeft - kRight;
constexpr int kPlotHeight = kHeight - kTop - kBottom;
// The strip above it that shows the bytes alive.
constexpr int kLiveTop = 84, kLiveBottom = 128;
// Room above the peak for its label.
constexpr double kHeadroom = 1.045;

// Colours by lifetime, short to long.
constexpr int kColours = 6;

// Less in either direction is merged into pixels.
constexpr double kLeastSide = 1.6;
// Less is drawn without a border, and not told when pointed at.
constexpr double kLeastArea = 14;
// A shorter side gets a hairline for a border.
constexpr double kBordered = 7;

constexpr const char* kSvgStyle = R"(<style>
svg{--page:#ffffff;--ink:#1d2330;--soft:#5b6475;--line:#e3e6ec;--peak:#c2273d;
--live:#46546e;--c0:#f9b24e;--c1:#f08a5b;--c2:#d95f7c;--c3:#a0559f;--c4:#6457a6;
--c5:#34659f;--n0:#3a2600;--n1:#3d1500;--n2:#fff}
@media(prefers-color-scheme:dark){svg{--page:#12151c;--ink:#eceff5;
--soft:#9aa4b6;--line:#272d39;--peak:#ff7085;--live:#a9b6cf;--c0:#f3b562;
--c1:#ea8c63;--c2:#d5688a;--c3:#a565ab;--c4:#7770c0;--c5:#4d84c4}}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",
Arial,sans-serif;font-size:12px;fill:var(--soft)}
.h{font-size:22px;font-weight:650;fill:var(--ink)}
.s{font-size:13.5px}.e{text-anchor:end}.m{text-anchor:middle}
.g{stroke:var(--line);stroke-width:1}.a{stroke:var(--soft);stroke-width:1}
.b rect{stroke:var(--page);stroke-width:.8}.b .f{stroke-width:.35}.b rect:hover{stroke:var(--ink);
stroke-width:1.6}
.n{font-size:11px;pointer-events:none}
.p{stroke:var(--peak);stroke-width:1.6}.q{stroke-dasharray:7 5}
.t{fill:var(--peak);font-weight:600;paint-order:stroke;stroke:var(--page);
stroke-width:4px;stroke-linejoin:round}
.l{fill:var(--live);fill-opacity:.2;stroke:var(--live);stroke-width:.8;
stroke-opacity:.8}
.k0{fill:var(--line)}.k1{fill:var(--soft);fill-opacity:.35}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}
.c3{fill:var(--c3)}.c4{fill:var(--c4)}.c5{fill:var(--c5)}
.n0{fill:var(--n0)}.n1{fill:var(--n1)}.n2{fill:var(--n2)}
.o0{fill-opacity:.3}.o1{fill-opacity:.62}
</style>
)";

// A tenth of a pixel is finer than anyone sees; "12" rather than "12.0".
std::string Pixels(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

// "99.8 %", and never "0 %" or "100 %" for what is not.
std::string SvgPercent(double share) {
  if (share <= 0) return "0 %";
  return share < 0.0001 ? "below 0.01 %" : fmt::format("{:.2g} %", 100 * share);
}

// Lifetimes in classes that grow by one factor, from the shortest to the
// longest of the trace: every picture uses all the colours it has.
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
  // The longest of a class.
  int64_t Limit(int colour) const {
    return colour + 1 < kColours ? limits_[static_cast<size_t>(colour)]
                                 : longest_;
  }

 private:
  std::array<int64_t, kColours - 1> limits_ = {};
  int64_t longest_ = 0;
};

// Steps of an axis: about `wanted` of them up to `most`, in base `base` (1, 2,
// 5 for 10; powers of two for 2).
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
    Put("<text class=\"s\" x=\"{}\" y=\"64\">{}</text>\n", kLeft,
        EscapeHtml(Subtitle()));
    Marks();
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
  // A mark may begin before the first buffer, and end after the last.
  double Within(int64_t time) const {
    return X(std::clamp(time, first_, last_));
  }
  double Y(double bytes) const {
    return kTop + kPlotHeight * (1 - bytes / Top());
  }
  double Top() const {
    const double peak = static_cast<double>(plan_.peak.count());
    return std::max(peak, 1.0) * kHeadroom;
  }

  // A strip above the plot that shows which piece of work runs.
  void Marks() {
    const auto& marks = named_.marks;
    if (marks.empty() || kPlotWidth / static_cast<double>(marks.size()) < 2.5) {
      return;
    }
    const std::string names = Labels(marks);
    for (size_t k = 0; k < marks.size(); ++k) {
      const double x = Within(marks[k].lower);
      Put("<rect class=\"k{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"6\">"
          "<title>{}</title></rect>\n",
          k % 2, Pixels(x), kTop - 12, Pixels(Within(marks[k].upper) - x),
          EscapeHtml(marks[k].name));
    }
    text_ += names;
  }

  // Names of the marks wide enough for them.
  std::string Labels(const std::vector<planner::Mark>& marks) const {
    std::string text;
    for (const planner::Mark& mark : marks) {
      const double width = Within(mark.upper) - Within(mark.lower);
      if (static_cast<double>(mark.name.size()) * 6.4 > width - 4) continue;
      fmt::format_to(std::back_inserter(text),
                     "<text class=\"n m\" x=\"{}\" y=\"{}\">{}</text>\n",
                     Pixels(Within(mark.lower) + width / 2), kTop - 17,
                     EscapeHtml(mark.name));
    }
    return text;
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
    CoverageGrid small(kPlotWidth, kPlotHeight, kColours);
    std::string large, labels;
    std::array<std::string, kColours> medium;
    for (size_t k = 0; k < plan_.offsets.size(); ++k) {
      const plan::Buffer& b = named_.trace.buffers[k];
      if (b.size == Bytes(0)) continue;
      const double offset = static_cast<double>(plan_.offsets[k].count());
      const Box box{X(b.lower), Y(offset + static_cast<double>(b.size.count())),
                    X(b.upper), Y(offset)};
      const int colour = lifetimes_.ColourOf(b);
      if (std::min(box.Width(), box.Height()) < kLeastSide) {
        small.Add(box.x0 - kLeft, box.y0 - kTop, box.x1 - kLeft, box.y1 - kTop,
                  colour);
      } else if (box.Width() * box.Height() < kLeastArea) {
        medium[static_cast<size_t>(colour)] += Outline(box);
      } else {
        large += Rectangle(box, k, colour);
        labels += Label(box, k, colour);
      }
    }
    Pixelated(small);
    for (int c = 0; c < kColours; ++c)
      Paths(medium[static_cast<size_t>(c)], c, 2);
    text_ += "<g class=\"b\">\n" + large + "</g>\n" + labels;
  }

  struct Box {
    double x0, y0, x1, y1;  // y0 is above y1
    double Width() const { return x1 - x0; }
    double Height() const { return y1 - y0; }
  };

  static std::string Outline(const Box& box) {
    return fmt::format("M{} {}h{}v{}h-{}z", Pixels(box.x0), Pixels(box.y0),
                       Pixels(box.Width()), Pixels(box.Height()),
                       Pixels(box.Width()));
  }

  void Pixelated(const CoverageGrid& grid) {
    for (int colour = 0; colour < kColours; ++colour) {
      for (int shade = 0; shade < CoverageGrid::kShades; ++shade) {
        Paths(grid.Path(colour, shade, kLeft, kTop), colour, shade);
      }
    }
  }

  void Paths(const std::string& data, int colour, int shade) {
    if (data.empty()) return;
    Put("<path class=\"c{} o{}\" d=\"{}\"/>\n", colour, shade, data);
  }

  std::string Rectangle(const Box& box, size_t k, int colour) const {
    const plan::Buffer& b = named_.trace.buffers[k];
    return fmt::format(
        "<rect class=\"c{}{}\" x=\"{}\" y=\"{}\" width=\"{}\" "
        "height=\"{}\"><title>{}: {}, alive {} to {}, at {}</title></rect>\n",
        colour, std::min(box.Width(), box.Height()) < kBordered ? " f" : "",
        Pixels(box.x0), Pixels(box.y0), Pixels(box.Width()),
        Pixels(box.Height()), EscapeHtml(named_.names[k]), Size(b.size.count()),
        Count(static_cast<double>(b.lower)),
        Count(static_cast<double>(b.upper)), Size(plan_.offsets[k].count()));
  }

  // Name and size, or what of them there is room for.
  std::string Label(const Box& box, size_t k, int colour) const {
    constexpr double kCharacter = 6.3, kLine = 15;
    if (box.Height() < kLine) return "";
    const std::string size = Size(named_.trace.buffers[k].size.count());
    for (const std::string& text : {named_.names[k] + " · " + size, size}) {
      const double room = box.Width() - 8;
      if (static_cast<double>(Width(text)) * kCharacter > room) continue;
      return fmt::format(
          "<text class=\"n m n{}\" x=\"{}\" y=\"{}\">{}</text>\n",
          std::min(colour, 2), Pixels((box.x0 + box.x1) / 2),
          Pixels((box.y0 + box.y1) / 2 + 4), EscapeHtml(text));
    }
    return "";
  }

  // Bytes alive over time: the most of each pixel.
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

  // The peak, and the bound where it is another line.
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
      if (lifetimes_.Limit(c) == before) continue;  // few lifetimes
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
