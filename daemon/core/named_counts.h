// Enums with named values: labels of metrics, kinds of events. Code that
// branches or counts uses the value, code that prints uses `Name`.
//
//   enum class Colour { kBlue, kRed };
//   template <>
//   struct EnumNames<Colour> {
//     static constexpr std::string_view kNames[] = {"blue", "red"};
//   };
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace sluice::daemon {

// EnumNames<E>::kNames has the names of the values, in the values' order.
template <typename E>
struct EnumNames;

template <typename E>
constexpr std::string_view Name(E value) requires requires {
  EnumNames<E>::kNames;
}
{ return EnumNames<E>::kNames[static_cast<size_t>(value)]; }

// One counter per value, each initially zero.
template <typename E>
class CountsBy {
 public:
  uint64_t& operator[](E value) { return counts_[static_cast<size_t>(value)]; }
  uint64_t operator[](E value) const {
    return counts_[static_cast<size_t>(value)];
  }

  // Calls `each(name, count)` in the order of the table of names.
  template <typename Each>
  void ForEach(Each each) const {
    for (size_t i = 0; i < counts_.size(); ++i) {
      each(EnumNames<E>::kNames[i], counts_[i]);
    }
  }

 private:
  std::array<uint64_t, std::size(EnumNames<E>::kNames)> counts_ = {};
};

}  // namespace sluice::daemon
