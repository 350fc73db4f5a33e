// Limits how often each principal may do something expensive: a token bucket
// for each. A full bucket is dropped. A cost above the size of a bucket is
// allowed if the bucket is full; the bucket then has less than zero.
// Thread safety: the loop's thread only.
#pragma once

#include <algorithm>
#include <map>

#include "absl/time/time.h"
#include "daemon/quota/principal.h"
#include "proto/base/find.h"
#include "proto/base/table.h"

namespace sluice::daemon {

class Allowances {
 public:
  struct Bucket {
    double left = 0;
    absl::Time at;  // the time at which `left` was computed
    bool operator==(const Bucket&) const = default;
  };
  using Saved = std::map<Principal, Bucket>;

  Allowances(double per_second, double full)
      : per_second_(per_second), full_(full) {}

  // Takes `cost` from the principal's bucket; returns false if it has less.
  bool Take(const Principal& who, double cost, absl::Time now) {
    if (cost <= 0) return true;
    buckets_.EraseIf([&](const Principal& whose, const Bucket& bucket) {
      return whose != who && LeftOf(bucket, now) >= full_;
    });
    const double left = LeftOf(FindOr(buckets_, who, {full_, now}), now);
    if (left < std::min(cost, full_)) return false;
    buckets_.Put(who) = {left - cost, now};
    return true;
  }

  double per_second() const { return per_second_; }
  const Saved& Save() const { return buckets_.rows(); }
  void Load(const Saved& saved) { buckets_.Load(saved); }
  // For saving (core/state.h).
  Table<Principal, Bucket>& rows() { return buckets_; }

 private:
  double LeftOf(const Bucket& bucket, absl::Time now) const {
    const absl::Duration since =
        std::max(now - bucket.at, absl::ZeroDuration());
    return std::min(full_,
                    bucket.left + per_second_ * absl::ToDoubleSeconds(since));
  }

  const double per_second_, full_;
  Table<Principal, Bucket> buckets_;
};

}  // namespace sluice::daemon
