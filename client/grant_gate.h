// The rank's side of swap-bandwidth grants (proto/base/grant_page.h).
//
// Thread safety: Acquire is safe from several threads; the fast path is one
// atomic fetch_add.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "proto/base/clock.h"
#include "proto/base/grant_page.h"
#include "proto/base/units.h"

namespace sluice::client {

class GrantGate {
 public:
  // Pages outlive the gate. `guaranteed_bytes_per_second` (0: none) is what a
  // rank keeps to when the daemon's heartbeat is stale.
  GrantGate(const GrantLimits* limits, int slot, GrantUse* use,
            double guaranteed_bytes_per_second, const Clock* clock);

  // Takes `size` bytes of direction kH2d or kD2h, waiting while the limit is
  // behind and the daemon is alive. Returns the time waited.
  absl::Duration Acquire(int direction, Bytes size);

 private:
  absl::Duration AcquireSlow(int direction, uint64_t end);

  const GrantLimits* limits_;
  const int slot_;
  GrantUse* use_;
  const double guaranteed_;
  const Clock* clock_;
};

}  // namespace sluice::client
