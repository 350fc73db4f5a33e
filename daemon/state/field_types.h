// The types that fields.h can write without a list of fields, and the encoding
// of numbers and times.
//
// Thread safety: values.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <set>
#include <type_traits>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/base/units.h"

namespace sluice::daemon {

template <typename T, typename Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;

namespace fields {

template <template <typename...> typename Template, typename T>
inline constexpr bool kIsA = false;
template <template <typename...> typename Template, typename... Args>
inline constexpr bool kIsA<Template, Template<Args...>> = true;
template <typename T>
inline constexpr bool kIsArray = false;
template <typename T, size_t n>
inline constexpr bool kIsArray<std::array<T, n>> = true;

template <typename T>
concept Number = std::integral<T> || std::is_enum_v<T> || kIsA<Id, T> ||
    std::same_as<T, Bytes>;
template <typename T>
concept List = kIsA<std::vector, T> || kIsA<std::set, T>;

// protobuf's wire types: a varint, 8 bytes, or a length and that many bytes.
template <typename T>
inline constexpr uint32_t kWireType = Number<T> || kIsA<std::shared_ptr, T> ? 0
                                      : std::floating_point<T>              ? 1
                                                                            : 2;

// Encodes a signed number so that small absolute values are short.
constexpr uint64_t ZigZag(int64_t n) {
  return (static_cast<uint64_t>(n) << 1) ^ static_cast<uint64_t>(n >> 63);
}
constexpr int64_t UnZigZag(uint64_t n) {
  return static_cast<int64_t>(n >> 1) ^ -static_cast<int64_t>(n & 1);
}

template <Number T>
uint64_t ToNumber(T value) {
  if constexpr (kIsA<Id, T>) {
    return value.value();
  } else if constexpr (std::same_as<T, Bytes>) {
    return ZigZag(value.count());
  } else if constexpr (std::is_enum_v<T>) {
    return ToNumber(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_signed_v<T>) {
    return ZigZag(value);
  } else {
    return value;
  }
}

template <Number T>
void FromNumber(uint64_t number, T& value) {
  if constexpr (std::same_as<T, Bytes>) {
    value = Bytes(UnZigZag(number));
  } else if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> plain{};
    FromNumber(number, plain);
    value = static_cast<T>(plain);
  } else if constexpr (std::integral<T> && std::is_signed_v<T>) {
    value = static_cast<T>(UnZigZag(number));
  } else {
    value = T(number);
  }
}

// A time in quarters of nanoseconds, absl's own resolution, so that every time
// is read back exactly.
struct TimeParts {
  int64_t seconds = 0;
  // Quarter nanoseconds; kInfinite: `seconds` is its sign.
  int64_t quarters = 0;
  static constexpr int64_t kInfinite = -1;
};
TimeParts ToParts(absl::Time time);
absl::Time FromParts(TimeParts parts);

}  // namespace fields

}  // namespace sluice::daemon
