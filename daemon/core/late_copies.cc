#include "daemon/core/late_copies.h"

#include <algorithm>

namespace sluice::daemon {

void LateCounter::See(uint64_t up_to, absl::Duration in, uint64_t granted,
                      absl::Duration since_last) {
  if (up_to <= granted || in >= absl::ZeroDuration()) return;
  if (up_to != counted_) ++sum_.copies;
  counted_ = up_to;
  sum_.seconds += absl::ToDoubleSeconds(std::min(-in, since_last));
}

}  // namespace sluice::daemon
