#include "client/ctl/desk/coverage_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace sluice::ctl {
namespace {

// A pixel of less is left empty: a hair of a buffer is not a buffer.
constexpr float kLeast = 0.06F;

}  // namespace

CoverageGrid::CoverageGrid(int width, int height, int colours)
    : width_(width),
      height_(height),
      colours_(colours),
      covered_(static_cast<size_t>(width) * height * colours) {}

void CoverageGrid::Add(double x0, double y0, double x1, double y1, int colour) {
  x0 = std::clamp<double>(x0, 0, width_);
  x1 = std::clamp<double>(x1, 0, width_);
  y0 = std::clamp<double>(y0, 0, height_);
  y1 = std::clamp<double>(y1, 0, height_);
  for (int x = static_cast<int>(x0); x < width_ && x < x1; ++x) {
    const double across = std::min(x1, x + 1.0) - std::max<double>(x0, x);
    for (int y = static_cast<int>(y0); y < height_ && y < y1; ++y) {
      const double down = std::min(y1, y + 1.0) - std::max<double>(y0, y);
      covered_[(static_cast<size_t>(colour) * width_ + x) * height_ + y] +=
          static_cast<float>(across * down);
    }
  }
}

uint8_t CoverageGrid::Cell(int x, int y) const {
  float sum = 0, most = 0;
  int best = 0;
  for (int c = 0; c < colours_; ++c) {
    const float part =
        covered_[(static_cast<size_t>(c) * width_ + x) * height_ + y];
    sum += part;
    if (part > most) most = part, best = c;
  }
  if (sum < kLeast) return kEmpty;
  const int shade = sum < 0.4F ? 0 : sum < 0.75F ? 1 : 2;
  return static_cast<uint8_t>(best * kShades + shade);
}

std::string CoverageGrid::Path(int colour, int shade, int dx, int dy) const {
  const auto wanted = static_cast<uint8_t>(colour * kShades + shade);
  std::string path;
  // Runs down a column, each with the column it began in; a run that the next
  // column repeats grows across.
  std::map<std::pair<int, int>, int> open;
  const auto close = [&](std::pair<int, int> run, int from, int to) {
    fmt::format_to(std::back_inserter(path), "M{} {}h{}v{}h-{}z", from + dx,
                   run.first + dy, to - from, run.second - run.first,
                   to - from);
  };
  for (int x = 0; x <= width_; ++x) {
    std::map<std::pair<int, int>, int> now;
    for (int y = 0; x < width_ && y < height_;) {
      const int start = y;
      while (y < height_ && Cell(x, y) == wanted) ++y;
      if (y > start) now[{start, y}] = x;
      if (y == start) ++y;
    }
    for (const auto& [run, from] : open) {
      const auto again = now.find(run);
      if (again != now.end()) {
        again->second = from;
      } else {
        close(run, from, x);
      }
    }
    open = std::move(now);
  }
  return path;
}

}  // namespace sluice::ctl
