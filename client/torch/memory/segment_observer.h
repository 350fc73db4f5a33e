#pragma once

#include <string_view>

namespace sluice::runtime {

// Called on the compute thread, with the allocator's lock held: must be short
// and must not allocate tensors.
class SegmentObserver {
 public:
  virtual ~SegmentObserver() = default;
  virtual void SegmentBegan(std::string_view kind) = 0;
  virtual void SegmentEnded(std::string_view kind) = 0;
};

}  // namespace sluice::runtime
