// The CPU code of token_math.h, included once for each instruction set, with
// its functions in namespace SLUICE_INSTRUCTIONS. Not target_clones: in clones
// GCC 12 drops flags that loops need to vectorise (-fno-trapping-math).
//
// Everything but Compute has internal linkage. No inline function with external
// linkage is called: the linker keeps one copy of such a function, perhaps one
// with instructions that this CPU lacks.
#include "kernels/ops/token_forms.h"
#include "kernels/ops/vector_math.h"

namespace sluice::ops {
namespace {

// Elements converted to fp32 at a time. Where an output may be an input, loops
// read and write tensors by such tiles, so that the overlap does no harm.
constexpr int64_t kTile = 256;
// Number of partial sums. With them a sum vectorises although the compiler must
// not reorder its additions.
constexpr int64_t kLanes = 16;

struct alignas(64) Tile {
  float at[kTile];
};
struct alignas(64) Lanes {
  float at[kLanes];
};

SLUICE_INLINED int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

template <typename T>
SLUICE_INLINED void Read(const T* from, int64_t n, Tile& to) {
  for (int64_t i = 0; i < n; ++i) to.at[i] = ToFloat(from[i]);
}
template <typename T>
SLUICE_INLINED void Write(const Tile& from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) FromFloat(from.at[i], to[i]);
}

// Fills the tile's last lanes with zeros, because sums run over whole groups of
// lanes. Returns the padded length.
SLUICE_INLINED int64_t PadToLanes(Tile& tile, int64_t n) {
  const int64_t end = (n + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = n; i < end; ++i) tile.at[i] = 0;
  return end;
}
// Adds the products a[i] * b[i] to the sums.
SLUICE_INLINED void AddProducts(const Tile& a, const Tile& b, int64_t end,
                                Lanes& sums) {
  for (int64_t i = 0; i < end; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums.at[lane] += a.at[i + lane] * b.at[i + lane];
    }
  }
}
SLUICE_INLINED float Total(const Lanes& sums) {
  float total = 0;
  for (const float sum : sums.at) total += sum;
  return total;
}

SLUICE_INLINED float InverseRms(const RmsNormShape& shape, float squares) {
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(shape.width) +
                                shape.epsilon);
}

template <typename T>
SLUICE_INLINED float SumOfSquares(const T* x, int64_t n) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = ToFloat(x[i + lane]);
      sums.at[lane] += value * value;
    }
  }
  float total = Total(sums);
  for (; i < n; ++i) total += ToFloat(x[i]) * ToFloat(x[i]);
  return total;
}

template <typename T>
SLUICE_INLINED void RmsNormRow(const RmsNormShape& shape, const T* __restrict x,
                               const T* __restrict weight, T* __restrict y) {
  const float scale = InverseRms(shape, SumOfSquares(x, shape.width));
  for (int64_t i = 0; i < shape.width; ++i) {
    FromFloat(ToFloat(x[i]) * scale * ToFloat(weight[i]), y[i]);
  }
}

template <typename T>
SLUICE_INLINED void Rows(const RmsNormShape& shape,
                         const RmsNormTensors<T>& t) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t at = row * shape.width;
    RmsNormRow(shape, t.x + at, t.weight, t.y + at);
  }
}

// Reads the gradient of y for `n` elements, the sum of all tensors in `dy`.
template <typename T>
SLUICE_INLINED void ReadGradient(const RmsNormGradients<T>& t, int64_t first,
                                 int64_t n, Tile& to) {
  Read(t.dy[0] + first, n, to);
  for (int k = 1; k < kMostGradients; ++k) {
    if (t.dy[k] == nullptr) continue;
    const T* const more = t.dy[k] + first;
    for (int64_t i = 0; i < n; ++i) to.at[i] += ToFloat(more[i]);
  }
}

template <typename T>
SLUICE_INLINED void RmsNormBackwardRow(const RmsNormShape& shape,
                                       const RmsNormGradients<T>& t,
                                       int64_t first, float* weight_gradient) {
  Tile x, w, d;
  Lanes squares = {}, dots = {};
  for (int64_t at = 0; at < shape.width; at += kTile) {
    const int64_t n = Least(kTile, shape.width - at);
    Read(t.x + first + at, n, x);
    Read(t.weight + at, n, w);
    ReadGradient(t, first + at, n, d);
    const int64_t end = PadToLanes(x, n);
    for (int64_t i = 0; i < n; ++i) d.at[i] *= w.at[i];
    PadToLanes(d, n);
    AddProducts(x, x, end, squares);
    AddProducts(x, d, end, dots);
  }
  const float scale = InverseRms(shape, Total(squares));
  const float mean = Total(dots) * scale / static_cast<float>(shape.width);
  for (int64_t at = 0; at < shape.width; at += kTile) {
    const int64_t n = Least(kTile, shape.width - at);
    Read(t.x + first + at, n, x);
    Read(t.weight + at, n, w);
    ReadGradient(t, first + at, n, d);
    float* const sums = weight_gradient + at;
    for (int64_t i = 0; i < n; ++i) x.at[i] *= scale;
    for (int64_t i = 0; i < n; ++i) sums[i] += d.at[i] * x.at[i];
    for (int64_t i = 0; i < n; ++i) {
      d.at[i] = (d.at[i] * w.at[i] - x.at[i] * mean) * scale;
    }
    if (t.residual != nullptr) {
      Read(t.residual + first + at, n, x);
      for (int64_t i = 0; i < n; ++i) d.at[i] += x.at[i];
    }
    Write(d, n, t.dx + first + at);
  }
}

template <typename T>
SLUICE_INLINED void Rows(const RmsNormShape& shape,
                         const RmsNormGradients<T>& t) {
  // Not shape.parts(), an inline function: see the file comment.
  const int64_t parts =
      (shape.rows + shape.rows_in_part - 1) / shape.rows_in_part;
  const int64_t sums = parts * shape.width;
  for (int64_t i = 0; i < sums; ++i) t.weight_gradient[i] = 0;
  for (int64_t row = 0; row < shape.rows; ++row) {
    RmsNormBackwardRow(
        shape, t, row * shape.width,
        t.weight_gradient + row / shape.rows_in_part * shape.width);
  }
}

template <typename In, typename Out>
SLUICE_INLINED void RopeHead(const In* x, const float* cos, const float* sin,
                             int64_t half, float sign, Out* y) {
  Tile a, b, c, s;
  for (int64_t at = 0; at < half; at += kTile) {
    const int64_t n = Least(kTile, half - at);
    Read(x + at, n, a);
    Read(x + half + at, n, b);
    Read(cos + at, n, c);
    Read(sin + at, n, s);
    for (int64_t i = 0; i < n; ++i) {
      const float first = a.at[i], second = b.at[i], by = s.at[i] * sign;
      a.at[i] = first * c.at[i] - second * by;
      b.at[i] = second * c.at[i] + first * by;
    }
    Write(a, n, y + at);
    Write(b, n, y + half + at);
  }
}

template <typename In, typename Out>
SLUICE_INLINED void Rows(const RopeShape& shape,
                         const RopeTensors<In, Out>& t) {
  const int64_t half = shape.dim / 2;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t first = (row * shape.heads + head) * shape.dim;
      RopeHead(t.x + first, t.cos + row * half, t.sin + row * half, half,
               shape.inverse ? -1.0f : 1.0f, t.y + first);
    }
  }
}

SLUICE_INLINED float Sigmoid(float x) {
  const float of_negative = ExpOfNegative(x < 0 ? x : -x);
  return (x < 0 ? of_negative : 1.0f) / (1.0f + of_negative);
}

template <typename T>
SLUICE_INLINED void Rows(const SwigluShape& shape, const SwigluTensors<T>& t) {
  const T* const __restrict gate = t.gate;
  const T* const __restrict up = t.up;
  T* const __restrict y = t.y;
  for (int64_t i = 0; i < shape.elements; ++i) {
    const float g = ToFloat(gate[i]);
    FromFloat(g * Sigmoid(g) * ToFloat(up[i]), y[i]);
  }
}

template <typename T>
SLUICE_INLINED void Rows(const SwigluShape& shape,
                         const SwigluGradients<T>& t) {
  Tile dy;
  for (int64_t at = 0; at < shape.elements; at += kTile) {
    const int64_t n = Least(kTile, shape.elements - at);
    const T* const __restrict gate = t.gate + at;
    const T* const __restrict up = t.up + at;
    T* const __restrict d_gate = t.d_gate + at;
    T* const __restrict d_up = t.d_up + at;
    Read(t.dy + at, n, dy);
    for (int64_t i = 0; i < n; ++i) {
      const float g = ToFloat(gate[i]), s = Sigmoid(g), d = dy.at[i];
      FromFloat(d * ToFloat(up[i]) * s * (1.0f + g * (1.0f - s)), d_gate[i]);
      FromFloat(d * g * s, d_up[i]);
    }
  }
}

template <typename T>
SLUICE_INLINED float GreatestOf(const T* logits, int64_t width) {
  Tile tile;
  Lanes greatest;
  constexpr float kLeast = -__builtin_inff();
  for (float& lane : greatest.at) lane = kLeast;
  for (int64_t at = 0; at < width; at += kTile) {
    const int64_t n = Least(kTile, width - at);
    Read(logits + at, n, tile);
    for (int64_t i = n; i % kLanes != 0; ++i) tile.at[i] = kLeast;
    for (int64_t i = 0; i < n; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float x = tile.at[i + lane];
        greatest.at[lane] = x > greatest.at[lane] ? x : greatest.at[lane];
      }
    }
  }
  float most = kLeast;
  for (const float lane : greatest.at) most = lane > most ? lane : most;
  return most;
}

template <typename T>
SLUICE_INLINED float SumOfExp(const T* logits, int64_t width, float greatest) {
  Tile tile;
  Lanes sums = {};
  for (int64_t at = 0; at < width; at += kTile) {
    const int64_t n = Least(kTile, width - at);
    Read(logits + at, n, tile);
    for (int64_t i = 0; i < n; ++i) {
      tile.at[i] = ExpOfNegative(tile.at[i] - greatest);
    }
    const int64_t end = PadToLanes(tile, n);
    for (int64_t i = 0; i < end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        sums.at[lane] += tile.at[i + lane];
      }
    }
  }
  return Total(sums);
}

template <typename T>
SLUICE_INLINED float SoftmaxRow(const SoftmaxShape& shape, T* logits,
                                int64_t label) {
  const float greatest = GreatestOf(logits, shape.width);
  const float sum = SumOfExp(logits, shape.width, greatest);
  const float picked = ToFloat(logits[label]) - greatest;
  const float factor = shape.scale / sum;
  Tile tile;
  for (int64_t at = 0; at < shape.width; at += kTile) {
    const int64_t n = Least(kTile, shape.width - at);
    Read(logits + at, n, tile);
    for (int64_t i = 0; i < n; ++i) {
      tile.at[i] = ExpOfNegative(tile.at[i] - greatest) * factor;
    }
    if (label >= at && label < at + n) {
      // Computes (p - 1) * scale for the label.
      tile.at[label - at] -= shape.scale;
    }
    Write(tile, n, logits + at);
  }
  return __builtin_logf(sum) - picked;
}

template <typename T>
SLUICE_INLINED void Rows(const SoftmaxShape& shape,
                         const SoftmaxTensors<T>& t) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    T* const logits = t.logits + row * shape.width;
    if (t.labels[row] == shape.ignored) {
      for (int64_t i = 0; i < shape.width; ++i) logits[i] = T{};
      t.loss[row] = 0;
    } else {
      t.loss[row] = SoftmaxRow(shape, logits, t.labels[row]);
    }
  }
}

}  // namespace

namespace SLUICE_INSTRUCTIONS {

#define SLUICE_DEFINE(Shape, ...) \
  void Compute(const Shape& shape, const __VA_ARGS__& t) { Rows(shape, t); }
SLUICE_TOKEN_FORMS(SLUICE_DEFINE)

}  // namespace SLUICE_INSTRUCTIONS
}  // namespace sluice::ops
