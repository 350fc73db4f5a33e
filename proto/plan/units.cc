#include "proto/plan/units.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::plan {

Trace Canonical(const Trace& trace) {
  std::vector<int64_t> times;
  for (const Buffer& b : trace.buffers) {
    times.push_back(b.lower);
    times.push_back(b.upper);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto rank = [&times](int64_t time) {
    return std::lower_bound(times.begin(), times.end(), time) - times.begin();
  };
  Trace canonical{.buffers = {}, .end = 0, .alignment = trace.alignment};
  for (const Buffer& b : trace.buffers) {
    canonical.buffers.push_back(
        {.id = static_cast<int64_t>(canonical.buffers.size()),
         .lower = rank(b.lower),
         .upper = rank(b.upper),
         .size = b.size});
    canonical.end = std::max(canonical.end, canonical.buffers.back().upper);
  }
  return canonical;
}

std::string UnitKey(const Trace& trace) {
  const Trace canonical = Canonical(trace);
  std::string text = fmt::format("{};", canonical.alignment.count());
  for (const Buffer& b : canonical.buffers) {
    fmt::format_to(std::back_inserter(text), "{},{},{};", b.lower, b.upper,
                   b.size.count());
  }
  return HashBytes(text);
}

bool SameUnit(const Trace& a, const Trace& b) {
  return a.alignment == b.alignment &&
         std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(),
                    b.buffers.end(), [](const Buffer& x, const Buffer& y) {
                      return x.lower == y.lower && x.upper == y.upper &&
                             x.size == y.size;
                    });
}

std::string HashBytes(std::string_view bytes) {
  using uint128 = unsigned __int128;
  constexpr uint128 kPrime = (uint128{1} << 88) | 0x13b;
  uint128 hash = (uint128{0x6c62272e07bb0142} << 64) | 0x62b821756295c58d;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  }
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(hash >> 64),
                     static_cast<uint64_t>(hash));
}

}  // namespace sluice::plan
