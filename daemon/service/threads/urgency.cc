#include "daemon/service/threads/urgency.h"

namespace sluice::daemon {

bool Urgency::IsUrgent(absl::Time now, absl::Duration cpu) {
  if (now < end_) return urgent_;
  if (begin_ != absl::InfinitePast()) {
    urgent_ = cpu - cpu_at_begin_ <= kMost * (now - begin_);
  }
  begin_ = now;
  end_ = now + kWindow;
  cpu_at_begin_ = cpu;
  return urgent_;
}

}  // namespace sluice::daemon
