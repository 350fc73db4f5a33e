#include "daemon/bandwidth/fair_shares.h"

#include <algorithm>
#include <limits>

namespace sluice::daemon::bandwidth {
namespace {

// A channel that has less left is full, and a want that lacks less is met: sums
// of shares are not exact.
constexpr double kNone = 1e-3;

double RoomOn(const std::vector<int>& path, const std::vector<double>& room) {
  double least = room[path.front()];
  for (const int channel : path) least = std::min(least, room[channel]);
  return least;
}

class Filling {
 public:
  Filling(const std::vector<Want>& wants, std::vector<double>& room)
      : wants_(wants),
        room_(room),
        shares_(wants.size(), 0),
        weights_(room.size(), 0) {
    for (size_t i = 0; i < wants.size(); ++i) rising_.push_back(i);
  }

  std::vector<double> Run() {
    // Each round stops one at least, or fills a channel. Counted, because a
    // want too large for its share to grow by a rounded step would never stop.
    for (size_t left = wants_.size() + room_.size(); left > 0; --left) {
      Settle();
      if (rising_.empty()) break;
      Raise(Step());
    }
    return shares_;
  }

 private:
  // Who has what it wants, or stands before a full channel, rises no more.
  void Settle() {
    std::erase_if(rising_, [&](size_t i) {
      return wants_[i].bytes - shares_[i] <= kNone ||
             RoomOn(*wants_[i].path, room_) <= kNone;
    });
  }

  // Per weight: how far all may rise until the next one stops.
  double Step() {
    std::fill(weights_.begin(), weights_.end(), 0);
    double step = std::numeric_limits<double>::infinity();
    for (const size_t i : rising_) {
      const Want& want = wants_[i];
      step = std::min(step, (want.bytes - shares_[i]) / want.weight);
      for (const int channel : *want.path) weights_[channel] += want.weight;
    }
    for (size_t channel = 0; channel < room_.size(); ++channel) {
      if (weights_[channel] <= 0) continue;
      step = std::min(step, room_[channel] / weights_[channel]);
    }
    return step;
  }

  void Raise(double step) {
    for (const size_t i : rising_) {
      const double more = step * wants_[i].weight;
      shares_[i] += more;
      for (const int channel : *wants_[i].path) room_[channel] -= more;
    }
  }

  const std::vector<Want>& wants_;
  std::vector<double>& room_;
  std::vector<double> shares_;
  std::vector<size_t> rising_;
  std::vector<double> weights_;  // of those that rise, by channel
};

}  // namespace

std::vector<double> FairShares(const std::vector<Want>& wants,
                               std::vector<double>& room) {
  if (wants.size() == 1) {  // most often; the same without the rounds
    const double share =
        std::max(0.0, std::min(wants[0].bytes, RoomOn(*wants[0].path, room)));
    for (const int channel : *wants[0].path) room[channel] -= share;
    return {share};
  }
  return Filling(wants, room).Run();
}

}  // namespace sluice::daemon::bandwidth
