// How often each principal may do what costs time: a token bucket each.
//
// A bucket that was not used for a while is full, and forgotten. A cost above a
// full bucket is allowed by a full one, which then owes the rest.
//
// Thread safety: none needed; the loop's thread only.
#pragma once

#include <map>

#include "absl/time/time.h"
#include "daemon/quota/principal.h"
#include "proto/base/table.h"

namespace sluice::daemon {

class Allowances {
 public:
  struct Bucket {
    double left = 0;
    absl::Time at;  // when there was so much left
    bool operator==(const Bucket&) const = default;
  };
  using Saved = std::map<Principal, Bucket>;

  Allowances(double per_second, double full)
      : per_second_(per_second), full_(full) {}

  // Takes `cost` of the principal's bucket; false if it does not hold that
  // much.
  bool Take(const Principal& who, double cost, absl::Time now);

  double per_second() const { return per_second_; }
  const Saved& Save() const { return buckets_.rows(); }
  void Load(const Saved& saved) { buckets_.Load(saved); }
  // The same row by row (state.h of core).
  Table<Principal, Bucket>& rows() { return buckets_; }
  void CheckInvariants() const;

 private:
  double LeftOf(const Bucket& bucket, absl::Time now) const;

  const double per_second_, full_;
  Table<Principal, Bucket> buckets_;
};

}  // namespace sluice::daemon
