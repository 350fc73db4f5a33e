// What is too small to be drawn by itself, as pixels: how much of each is
// covered, and by which colour most.
//
// Thread safety: one owner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::ctl {

class CoverageGrid {
 public:
  // Pixels across and down; colours are 0 to `colours` - 1.
  CoverageGrid(int width, int height, int colours);

  // A rectangle in pixels, clipped to the grid.
  void Add(double x0, double y0, double x1, double y1, int colour);

  // How full a pixel is drawn.
  static constexpr int kShades = 3;

  // SVG path data of all pixels of one colour and shade (0 is the lightest),
  // moved by (dx, dy); empty where there are none. Equal neighbours are one
  // rectangle.
  std::string Path(int colour, int shade, int dx, int dy) const;

 private:
  static constexpr uint8_t kEmpty = 0xff;

  // colour * kShades + shade, or kEmpty.
  uint8_t Cell(int x, int y) const;

  int width_, height_, colours_;
  std::vector<float> covered_;  // [colour][x][y]
};

}  // namespace sluice::ctl
