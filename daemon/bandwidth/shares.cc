#include "daemon/bandwidth/shares.h"

#include <algorithm>

#include "daemon/bandwidth/topology.h"

namespace sluice::daemon::bandwidth {
namespace {

// Sums of shares are not exact. So a channel with at most this many bytes of
// room counts as full, and a want that lacks at most as many counts as met.
constexpr double kNone = 1e-3;

class Filling {
 public:
  Filling(const std::vector<Want>& wants, std::vector<double>& room)
      : wants_(wants), room_(room), weights_(room.size(), 0) {
    shares_.bytes.resize(wants.size(), 0);
    shares_.full_at.resize(room.size(), kUnlimited);
    for (size_t i = 0; i < wants.size(); ++i) later_.push_back(i);
    // Sorted so that the next share to start rising is at the back.
    std::sort(later_.begin(), later_.end(), [this](size_t a, size_t b) {
      return Start(a) != Start(b) ? Start(a) > Start(b) : a > b;
    });
  }

  FairShares Run() {
    MarkFull();
    // Each round starts a share, stops a share or fills a channel. The number
    // of rounds is limited, because a share that is too large to grow by a
    // rounded step would never stop.
    for (size_t left = 2 * wants_.size() + room_.size() + 1; left > 0; --left) {
      StartSome();
      Settle();
      if (rising_.empty() && later_.empty()) break;
      Raise(Step());
      MarkFull();
    }
    return std::move(shares_);
  }

 private:
  double Start(size_t i) const { return wants_[i].had / wants_[i].weight; }
  double Lack(size_t i) const { return wants_[i].bytes - shares_.bytes[i]; }

  void StartSome() {
    if (rising_.empty() && !later_.empty()) {
      level_ = std::max(level_, Start(later_.back()));
    }
    while (!later_.empty() && Start(later_.back()) <= level_) {
      rising_.push_back(later_.back());
      later_.pop_back();
    }
  }

  // Stops each rising share with its demand met or a full channel on its path.
  void Settle() {
    std::erase_if(rising_, [&](size_t i) {
      const std::vector<int>& path = *wants_[i].path;
      return Lack(i) <= kNone || std::ranges::any_of(path, [&](int channel) {
               return room_[channel] <= kNone;
             });
    });
  }

  // Returns how far all rising shares may rise, per weight, until another share
  // starts or one stops.
  double Step() {
    if (rising_.empty()) return 0;
    double step = later_.empty() ? kUnlimited : Start(later_.back()) - level_;
    std::fill(weights_.begin(), weights_.end(), 0);
    for (const size_t i : rising_) {
      step = std::min(step, Lack(i) / wants_[i].weight);
      for (const int channel : *wants_[i].path) {
        weights_[channel] += wants_[i].weight;
      }
    }
    for (size_t channel = 0; channel < room_.size(); ++channel) {
      if (weights_[channel] <= 0) continue;
      step = std::min(step, room_[channel] / weights_[channel]);
    }
    return step;
  }

  void Raise(double step) {
    level_ += step;
    for (const size_t i : rising_) {
      const double more = std::min(step * wants_[i].weight, Lack(i));
      shares_.bytes[i] += more;
      for (const int channel : *wants_[i].path) room_[channel] -= more;
    }
  }

  void MarkFull() {
    for (size_t channel = 0; channel < room_.size(); ++channel) {
      if (room_[channel] > kNone) continue;
      shares_.full_at[channel] = std::min(shares_.full_at[channel], level_);
    }
  }

  const std::vector<Want>& wants_;
  std::vector<double>& room_;
  FairShares shares_;
  double level_ = 0;
  std::vector<size_t> later_, rising_;
  std::vector<double> weights_;  // sums over rising shares, by channel
};

double RoomFor(const LentCopy& copy, const std::vector<double>& room) {
  double least = std::min({copy.excess, copy.needed, copy.may});
  for (const int channel : *copy.path) least = std::min(least, room[channel]);
  return std::max(0.0, least);
}

}  // namespace

FairShares ShareFairly(const std::vector<Want>& wants,
                       std::vector<double>& room) {
  return Filling(wants, room).Run();
}

std::vector<double> ShareToLate(const std::vector<LentCopy>& copies,
                                double window, std::vector<double>& room) {
  std::vector<double> given(copies.size(), 0);
  if (window <= 0) return given;
  std::vector<double> weights(room.size(), 0);  // sums by channel
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
    // The time from the end of this window to the deadline.
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
