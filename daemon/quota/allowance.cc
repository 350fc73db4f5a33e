#include "daemon/quota/allowance.h"

#include <algorithm>

#include "proto/base/find.h"
#include "proto/base/status.h"

namespace sluice::daemon {

double Allowances::LeftOf(const Bucket& bucket, absl::Time now) const {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - bucket.at));
  return std::min(full_, bucket.left + per_second_ * seconds);
}

bool Allowances::Take(const Principal& who, double cost, absl::Time now) {
  if (cost <= 0) return true;
  buckets_.EraseIf([&](const Principal& whose, const Bucket& bucket) {
    return whose != who && LeftOf(bucket, now) >= full_;
  });
  const double left = LeftOf(FindOr(buckets_, who, {full_, now}), now);
  if (left < std::min(cost, full_)) return false;
  buckets_.Put(who) = {left - cost, now};
  return true;
}

void Allowances::CheckInvariants() const {
  for (const auto& [who, bucket] : buckets_) {
    SLUICE_CHECK(bucket.left <= full_);
  }
}

}  // namespace sluice::daemon
