// Waits for changes of a daemon's pool that the daemon notices up to a quarter
// of a second late.
#pragma once

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/base/units.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {

// Waits until the pool of GPU 0 has `wanted` bytes of `part`, such as
// &wire::Pool::lingering_bytes, and checks that the pool's parts always add up.
// Fails after 10 s.
inline void ExpectSoon(const std::string& socket,
                       uint64_t (wire::Pool::*part)() const, Bytes wanted) {
  const absl::Time until = absl::Now() + absl::Seconds(10);
  uint64_t found = 0;
  do {
    SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool pool, GpuPool(socket, 0));
    EXPECT_EQ(pool.total_bytes(), pool.leased_bytes() + pool.free_bytes() +
                                      pool.quarantined_bytes() +
                                      pool.lingering_bytes() +
                                      pool.held_outside_bytes());
    found = (pool.*part)();
    if (found == wanted.size()) return;
    absl::SleepFor(absl::Milliseconds(20));
  } while (absl::Now() < until);
  ADD_FAILURE() << found << " bytes, not " << wanted.size();
}

}  // namespace sluice::testing
