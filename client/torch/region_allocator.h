// The rank's HBM on sim: every c10 CPU allocation comes from a leased region.
//
// Once armed, each c10 CPU allocation of the process, on any thread, is
// served from [base, base + size), 64-byte aligned; running out throws
// c10::OutOfMemoryError saying asked, used and planned. Each block knows its
// allocator and place, so late and cross-thread frees are right. Exempt are
// leased host regions (at::from_blob) and a HostScope. oneDNN, MKL and Gloo
// call malloc by themselves and are not seen here.
//
// Planned segments. Between BeginSegment and EndSegment on the compute
// thread, its k-th allocation goes to the plan's k-th offset. An allocation
// that does not match the plan (other size, more of them, or its place still
// held by a living block) falls back to the pool; it is counted, logged once,
// and never corrupts. Unplanned segments are recorded.
//
// Layout of the region: [planned transient area | pool]. Before a plan is set
// the whole region is pool.
//
// Thread safety: allocation and free from any thread; segments belong to the
// compute thread (the one that armed).
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::runtime {

struct AllocatorStats {
  Bytes used, peak;        // of the region, planned area counted by blocks
  Bytes planned;           // size of the planned area
  Bytes host_used, host_peak;  // inside HostScopes
  int64_t planned_allocations = 0;
  int64_t mismatches = 0;
};

// A block's life, for the report's HBM map.
struct BlockRecord {
  Bytes offset, size;
  double born_s, died_s;   // monotonic seconds; died_s < born_s: alive
  std::string_view segment;
};

class RegionAllocator final : public c10::Allocator {
 public:
  // `base` (64-byte aligned) outlives the allocator and every tensor in it.
  RegionAllocator(std::byte* base, Bytes size);
  ~RegionAllocator() override;

  // Installs this allocator as c10's CPU allocator / puts the former back.
  void Arm();
  void Disarm();

  // Reserves the planned area (the pool must be free there) and adopts the
  // plan's segments; ResourceExhausted when the area is in use.
  absl::Status SetPlan(const std::vector<plan::SegmentPlan>& segments,
                       const std::vector<plan::SegmentKind>& kinds, Bytes peak);

  void BeginSegment(const std::string& kind);
  void EndSegment();
  // Kinds recorded so far, with measured seconds (the fastest execution).
  std::vector<plan::SegmentKind> TakeRecorded();
  void RecordSegments(bool on);
  void RecordBlocks(bool on);  // for the report
  std::vector<BlockRecord> TakeBlocks();

  AllocatorStats stats() const;
  void ResetPeak();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t count) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
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

// RAII, thread-local, nests: allocations of this thread come from ordinary
// host memory, counted. While training they are capped at 16 MiB in all;
// beyond it c10::OutOfMemoryError names the scope.
class HostScope {
 public:
  explicit HostScope(const char* what);
  ~HostScope();
  HostScope(const HostScope&) = delete;
  static void SetCap(Bytes cap);  // Bytes(0): no cap (check's reference)
};

}  // namespace sluice::runtime
