// Observations by size. A value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::daemon {

// Cumulative buckets as Prometheus expects them: counts[i] observations were <=
// bounds[i]; the last bucket counts the rest.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

  void Observe(double value) {
    ++counts_[std::ranges::lower_bound(bounds_, value) - bounds_.begin()];
    sum_ += value;
    ++count_;
  }

  // REQUIRES: `other` has the same bounds.
  void Merge(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    sum_ += other.sum_;
    count_ += other.count_;
  }

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }
  uint64_t count() const { return count_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
  uint64_t count_ = 0;
};

}  // namespace sluice::daemon
