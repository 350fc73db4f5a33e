// The rank's HBM: every c10 allocation of the device comes from a leased
// region. On sim the device is the CPU.
//
// Once armed, each c10 allocation of the process on the device, on any thread,
// is served from [base, base + size), aligned; running out throws
// c10::OutOfMemoryError saying asked, used and planned. Each block knows its
// allocator and place, so late and cross-thread frees are right. Exempt are
// leased host regions (at::from_blob) and, on sim, a HostScope. oneDNN, MKL and
// Gloo call malloc by themselves and are not seen here.
//
// On a GPU it is torch's CUDA allocator (torch_cuda.h): a freed block is given
// away at once, which is right in the order of one stream, the current one of
// Arm. Other streams are refused there.
//
// Planned segments. Between BeginSegment and EndSegment on the compute
// thread, its k-th allocation goes to the plan's k-th offset. An allocation
// that does not match the plan (other size, more of them, or its place still
// held by a living block) falls back to the pool; it is counted, logged once,
// and never corrupts. Unplanned segments are recorded.
//
// Layout of the region: [planned transient area | pool]. Before a plan is set
// the whole region is pool; the pool fills from the top, so that the bottom
// stays free for the planned area.
//
// Times of segments are those of the stream that computes them, if one was
// named (TimeSegmentsOn), else of the calling thread.
//
// With SLUICE_POISON=1 it overwrites freed blocks with 0xFF: NaN in every
// floating type.
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

// Every block starts at a multiple of it and is rounded up to it; nothing
// else is rounded. On the CPU, c10's 64; on a GPU, 256, as cudaMalloc's: cuBLAS
// wants its workspace so (cublasSetWorkspace), and at multiples of 64 an H100's
// refused products with a bias.
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
  // `base` (RegionAlignment), memory of `device`, outlives every tensor in it.
  // The allocator may go first: its block table stays until the last block is
  // freed. REQUIRES: `device` is the CPU, or a GPU and LoadTorchCuda
  // succeeded.
  RegionAllocator(c10::Device device, std::byte* base, Bytes size);
  ~RegionAllocator() override;

  c10::Device device() const { return device_; }

  // Installs this allocator as c10's of the device / puts the former back.
  void Arm();
  void Disarm();

  // Reserves the planned area (the lowest free place for `peak` bytes) and
  // adopts the plan's segments. ResourceExhausted: no such place;
  // FailedPrecondition: blocks of the former plan are still alive;
  // InvalidArgument: the plan does not answer these kinds. Then the former
  // plan stays. No segments and no peak: back to pool only.
  absl::Status SetPlan(const std::vector<plan::SegmentPlan>& segments,
                       const std::vector<plan::SegmentKind>& kinds, Bytes peak);

  // On a GPU, for segments that begin from now on: what they enqueue goes to
  // `stream`. Only recording and timelines ask for times, and nothing waits for
  // the stream but what says so. `driver` outlives the allocator.
  void TimeSegmentsOn(device::Driver* driver, device::Stream stream);
  // Why times are missing from what was recorded since: the stream's clock
  // failed.
  absl::Status times_fault() const;

  // A segment inside another belongs to the outer one.
  void BeginSegment(const std::string& kind);
  void EndSegment();
  // Kinds recorded so far, with measured seconds (the fastest execution). Waits
  // for the stream's times.
  std::vector<plan::SegmentKind> TakeRecorded();
  void RecordSegments(bool on);
  // Calls the observer for every outermost segment from now on; null: none. It
  // outlives the allocator or is taken off again.
  void Observe(SegmentObserver* observer);
  // For the report: when segments ran, and the lives of blocks, those alive
  // when it is switched on included. Views live as long as the allocator.
  // Switching on and TakeRuns wait for the stream that segments are timed on;
  // blocks are born and die by the host's clock, when their use is issued.
  void RecordTimeline(bool on);
  std::vector<SegmentRun> TakeRuns();
  std::vector<BlockRecord> TakeBlocks();

  AllocatorStats stats() const;
  void ResetPeak();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t count) const override;

 private:
  struct Impl;
  struct Table;
  // Until the times of all segments so far are known.
  void AwaitTimes();
  // So that timelines tell when segments began.
  void AlignTimes();
  static Table& Regions();
  static void Delete(void* block);

  const c10::Device device_;
  std::shared_ptr<Impl> impl_;  // shared with the table of regions
};

// RAII: marks a segment; works (as a no-op) with a null allocator.
class SegmentScope {
 public:
  SegmentScope(RegionAllocator* allocator, const std::string& kind);
  ~SegmentScope();
  SegmentScope(const SegmentScope&) = delete;

 private:
  RegionAllocator* allocator_;
};

}  // namespace sluice::runtime
