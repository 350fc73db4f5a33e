#include "daemon/bandwidth/due_first.h"

#include <algorithm>

namespace sluice::daemon::bandwidth {
namespace {

double RoomFor(const LentCopy& copy, const std::vector<double>& room) {
  double least = std::min({copy.excess, copy.needed, copy.may});
  for (const int channel : *copy.path) least = std::min(least, room[channel]);
  return std::max(0.0, least);
}

}  // namespace

std::vector<double> ShareToLate(const std::vector<LentCopy>& copies,
                                double window, std::vector<double>& room) {
  std::vector<double> given(copies.size(), 0);
  if (window <= 0) return given;
  std::vector<double> weights(room.size(), 0);  // of the copies, by channel
  for (const LentCopy& copy : copies) {
    for (const int channel : *copy.path) weights[channel] += copy.weight;
  }
  std::vector<size_t> late;
  for (size_t i = 0; i < copies.size(); ++i) {
    const LentCopy& copy = copies[i];
    if (copy.needed <= 0) continue;
    double rate = std::numeric_limits<double>::infinity();
    for (const int channel : *copy.path) {
      rate = std::min(rate, room[channel] * copy.weight / weights[channel]);
    }
    rate = std::max(rate / window, copy.promised_rate);
    // The time until the deadline if the copy got nothing in this window.
    const double left = std::max(0.0, copy.due - window);
    if (copy.needed > rate * left) late.push_back(i);
  }
  std::stable_sort(late.begin(), late.end(), [&](size_t a, size_t b) {
    return copies[a].due < copies[b].due;
  });
  for (const size_t i : late) {
    given[i] = RoomFor(copies[i], room);
    for (const int channel : *copies[i].path) room[channel] -= given[i];
  }
  return given;
}

}  // namespace sluice::daemon::bandwidth
