#include "tests/fake_cuda/nccl/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace sluice::fake_nccl {
namespace {

template <typename T>
T Combine(T a, T b, Reduction reduction) {
  switch (reduction) {
    case kProduct:
      return static_cast<T>(a * b);
    case kMax:
      return std::max(a, b);
    case kMin:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

// A number format: S is its stored type, which Load converts to the type that
// the reduction computes with.
template <typename T>
struct Plain {
  using S = T;
  static T Load(S stored) { return stored; }
  static S Store(T value) { return value; }
};
struct Bfloat16 {
  using S = uint16_t;
  static float Load(S stored) {
    return std::bit_cast<float>(uint32_t{stored} << 16);
  }
  static S Store(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return static_cast<S>(bits >> 16 | 0x40);
    return static_cast<S>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

template <typename Format>
void ReduceAs(const std::vector<const std::byte*>& parts, size_t count,
              Reduction reduction, std::byte* result) {
  using S = typename Format::S;
  for (size_t i = 0; i < count; ++i) {
    const auto load = [&](const std::byte* part) {
      S stored;
      std::memcpy(&stored, part + i * sizeof(S), sizeof(S));
      return Format::Load(stored);
    };
    auto value = load(parts[0]);
    for (size_t part = 1; part < parts.size(); ++part) {
      value = Combine(value, load(parts[part]), reduction);
    }
    using T = decltype(value);
    if (reduction == kAverage) {
      value = static_cast<T>(value / static_cast<T>(parts.size()));
    }
    const S stored = Format::Store(value);
    std::memcpy(result + i * sizeof(S), &stored, sizeof(S));
  }
}

}  // namespace

bool CanReduce(DataType type) {
  return type != kFloat16 && type != kFloat8e4m3 && type != kFloat8e5m2;
}

void Reduce(const std::vector<const std::byte*>& parts, size_t count,
            DataType type, Reduction reduction, std::byte* result) {
  switch (type) {
    case kInt8:
      return ReduceAs<Plain<int8_t>>(parts, count, reduction, result);
    case kUint8:
      return ReduceAs<Plain<uint8_t>>(parts, count, reduction, result);
    case kInt32:
      return ReduceAs<Plain<int32_t>>(parts, count, reduction, result);
    case kUint32:
      return ReduceAs<Plain<uint32_t>>(parts, count, reduction, result);
    case kInt64:
      return ReduceAs<Plain<int64_t>>(parts, count, reduction, result);
    case kUint64:
      return ReduceAs<Plain<uint64_t>>(parts, count, reduction, result);
    case kFloat32:
      return ReduceAs<Plain<float>>(parts, count, reduction, result);
    case kFloat64:
      return ReduceAs<Plain<double>>(parts, count, reduction, result);
    case kBfloat16:
      return ReduceAs<Bfloat16>(parts, count, reduction, result);
    default:
      return;  // see CanReduce
  }
}

}  // namespace sluice::fake_nccl
