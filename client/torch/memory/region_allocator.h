// The rank's HBM: once armed, it serves each c10 allocation of this process on
// the device (on sim the CPU), on any thread, from a leased region. When memory
// runs out, it throws c10::OutOfMemoryError with the bytes asked, used and
// planned. A block is found by its address, so late frees and frees from other
// threads are right. Leased host regions (ViewOf) and, on sim, a HostScope's
// memory are not part of it. oneDNN, MKL and Gloo call malloc by themselves and
// are not counted.
//
// On a GPU it is torch's CUDA allocator (torch_cuda.h). A freed block is reused
// at once, which is right in the order of one stream: the current one when Arm
// is called. Allocations on other streams are refused.
//
// Planned segments. Between BeginSegment and EndSegment on the compute thread,
// the k-th allocation of that thread goes to the plan's k-th offset. The pool
// serves an allocation that does not match the plan (another size, too many, or
// a living block still holds its place); such allocations are counted, and the
// first one is logged. RecordSegments records segments without a plan.
//
// Layout of the region: [planned transient area | pool]. The pool fills from
// the top, so the bottom stays free for the planned area. With SLUICE_POISON=1
// freed blocks are overwritten with 0xFF: NaN in every floating type.
//
// Thread safety: allocation and free from any thread; segments belong to the
// compute thread (the one that armed).
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/memory/host_scope.h"
#include "client/torch/memory/segment_observer.h"
#include "kernels/device/driver.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::runtime {

// Returns the unit of blocks' addresses and sizes: 64 bytes on the CPU, as in
// c10, and 256 on a GPU, as in cudaMalloc. cuBLAS requires 256 of its workspace
// (cublasSetWorkspace): with one at a multiple of 64 only, an H100 refused
// products with a bias.
Bytes RegionAlignment(c10::Device device);

struct AllocatorStats {
  Bytes used, peak;            // of the region, planned area counted by blocks
  Bytes planned;               // size of the planned area
  Bytes host_used, host_peak;  // inside HostScopes
  int64_t planned_allocations = 0;
  int64_t mismatches = 0;
};

// A block's life, for the report's HBM map.
struct BlockRecord {
  Bytes offset, size;
  double born_s, died_s;  // monotonic seconds; died_s < born_s: alive
  std::string_view segment;
};

// One execution of a segment, for the report's timeline.
struct SegmentRun {
  std::string_view kind;
  double start_s, end_s;  // monotonic seconds
};

class RegionAllocator final : public c10::Allocator {
 public:
  // `base` is memory of `device`, aligned to RegionAlignment, and outlives
  // every tensor in it. The allocator may be destroyed earlier: its block table
  // stays. REQUIRES: `device` is the CPU, or a GPU and LoadTorchCuda succeeded.
  RegionAllocator(c10::Device device, std::byte* base, Bytes size);
  ~RegionAllocator() override;

  c10::Device device() const { return device_; }

  // Installs this as c10's allocator of the device.
  void Arm();
  // Restores the former allocator.
  void Disarm();

  // Reserves the planned area (the lowest free place for `peak` bytes) and
  // adopts the segments; without segments, and with a peak of 0, there is no
  // plan. On an error the former plan stays. ResourceExhausted: no such place;
  // FailedPrecondition: blocks of the former plan are alive; InvalidArgument:
  // the plan does not match these kinds.
  absl::Status SetPlan(const std::vector<plan::SegmentPlan>& segments,
                       const std::vector<plan::SegmentKind>& kinds, Bytes peak);

  // From now on the clock of `stream`, a GPU's stream to which segments
  // enqueue, times them. Only recording and timelines ask for times, and only
  // methods that say so wait for the stream. `driver` outlives the allocator.
  void TimeSegmentsOn(device::Driver* driver, device::Stream stream);
  // Returns the failure of the stream's clock; times after it are missing.
  absl::Status times_fault() const;

  // Begins a segment. A segment inside another one belongs to the outer one.
  void BeginSegment(const std::string& kind);
  void EndSegment();
  // Returns the kinds recorded so far, with the seconds of their fastest
  // execution. Waits for the stream's times.
  std::vector<plan::SegmentKind> TakeRecorded();
  void RecordSegments(bool on);
  // From now on, calls the observer for every outermost segment; null removes
  // it. The observer outlives the allocator or is removed before its end.
  void Observe(SegmentObserver* observer);
  // Records for the report when segments run and, by the host's clock, when
  // blocks live, also those alive at the start. Names in the records are valid
  // as long as the allocator. RecordTimeline(true) and TakeRuns wait for the
  // stream that times segments.
  void RecordTimeline(bool on);
  std::vector<SegmentRun> TakeRuns();
  std::vector<BlockRecord> TakeBlocks();

  AllocatorStats stats() const;
  void ResetPeak();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  struct Impl;
  struct Table;
  void AwaitTimes();
  // Aligns clocks, so that timelines show when segments began.
  void AlignTimes();
  static Table& Regions();
  static void Delete(void* block);

  const c10::Device device_;
  std::shared_ptr<Impl> impl_;  // shared with the table of regions
};

// RAII: marks a segment; works (as a no-op) with a null allocator.
class SegmentScope {
 public:
  SegmentScope(RegionAllocator* allocator, const std::string& kind)
      : allocator_(allocator) {
    if (allocator_ != nullptr) allocator_->BeginSegment(kind);
  }
  ~SegmentScope() {
    if (allocator_ != nullptr) allocator_->EndSegment();
  }
  SegmentScope(const SegmentScope&) = delete;

 private:
  RegionAllocator* allocator_;
};

}  // namespace sluice::runtime
