#include "client/torch/memory/region_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "client/torch/memory/region_pool.h"
#include "client/torch/memory/segments.h"
#include "client/torch/memory/torch_cuda.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/poison.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constexpr uint8_t kArmedPriority = 100;

// One lock for all regions, because the deleter knows only a block's address.
// It is never destroyed: tensors are freed at exit, too.
constinit Mutex region_mutex;

void PoisonBlock(std::byte* block, Bytes size, c10::Device device) {
  if (!PoisonsBuffers()) return;
  if (device.is_cpu()) {
    std::memset(block, 0xff, size.size());
  } else {
    LoadedTorchCuda()->Fill(block, 0xff, size.size());
  }
}

}  // namespace

struct RegionAllocator::Impl {
  struct Block {
    Bytes size;
    bool planned;
    double born_s;
    std::string_view segment;
  };

  Impl(c10::Device device_in, std::byte* base_in, Bytes size_in)
      : device(device_in),
        base(base_in),
        size(size_in),
        pool(size_in),
        recorder(RegionAlignment(device_in)) {}

  const c10::Device device;
  std::byte* const base;
  const Bytes size;
  RegionPool pool ABSL_GUARDED_BY(region_mutex);
  // Keys are offsets.
  std::unordered_map<int64_t, Block> blocks ABSL_GUARDED_BY(region_mutex);
  Bytes used ABSL_GUARDED_BY(region_mutex);
  Bytes peak ABSL_GUARDED_BY(region_mutex);
  bool retired ABSL_GUARDED_BY(region_mutex) = false;

  Bytes plan_base ABSL_GUARDED_BY(region_mutex);
  Bytes plan_size ABSL_GUARDED_BY(region_mutex);
  PlanReplay replay ABSL_GUARDED_BY(region_mutex);
  int64_t planned_allocations ABSL_GUARDED_BY(region_mutex) = 0;
  int64_t mismatches ABSL_GUARDED_BY(region_mutex) = 0;

  std::thread::id compute_thread ABSL_GUARDED_BY(region_mutex) =
      std::this_thread::get_id();
  int segment_depth ABSL_GUARDED_BY(region_mutex) = 0;
  // Points into `names`, the kinds seen; nodes of a set never move.
  std::string_view segment ABSL_GUARDED_BY(region_mutex);
  std::set<std::string> names ABSL_GUARDED_BY(region_mutex);
  bool record_segments ABSL_GUARDED_BY(region_mutex) = false;
  SegmentRecorder recorder ABSL_GUARDED_BY(region_mutex);
  bool record_timeline ABSL_GUARDED_BY(region_mutex) = false;
  SegmentTimes times ABSL_GUARDED_BY(region_mutex);
  std::vector<SegmentRun> runs ABSL_GUARDED_BY(region_mutex);
  std::vector<BlockRecord> records ABSL_GUARDED_BY(region_mutex);

  SegmentObserver* observer ABSL_GUARDED_BY(region_mutex) = nullptr;

  bool armed ABSL_GUARDED_BY(region_mutex) = false;
  // The CPU's former allocator, while this one is armed.
  c10::Allocator* former ABSL_GUARDED_BY(region_mutex) = nullptr;

  bool OnComputeThread() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(region_mutex) {
    return std::this_thread::get_id() == compute_thread;
  }
  std::optional<Bytes> Place(Bytes bytes, bool* planned)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(region_mutex) {
    if (segment_depth > 0 && OnComputeThread()) {
      bool mismatch = false;
      const std::optional<Bytes> place = replay.Next(bytes, &mismatch);
      if (place.has_value()) {
        *planned = true;
        ++planned_allocations;
        return plan_base + *place;
      }
      if (mismatch) Mismatched();
    }
    return pool.Allocate(bytes);
  }

  // Returns null if the region is full.
  std::byte* Allocate(Bytes bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(region_mutex) {
    bool planned = false;
    const std::optional<Bytes> offset = Place(bytes, &planned);
    if (!offset.has_value()) return nullptr;
    const double born_s = record_timeline ? MonotonicSeconds() : 0;
    const bool in_segment = segment_depth > 0 && OnComputeThread();
    blocks.emplace(offset->count(),
                   Block{bytes, planned, born_s,
                         in_segment ? segment : std::string_view()});
    used += bytes;
    peak = std::max(peak, used);
    if (in_segment && recorder.recording()) recorder.Allocated(*offset, bytes);
    return base + offset->count();
  }

  void Free(Bytes offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(region_mutex) {
    const auto found = blocks.find(offset.count());
    const Block block = found->second;
    PoisonBlock(base + offset.count(), block.size, device);
    blocks.erase(found);
    used -= block.size;
    if (block.planned) {
      replay.Freed(offset - plan_base);
    } else {
      pool.Free(offset, block.size);
    }
    if (recorder.recording() && OnComputeThread()) recorder.Freed(offset);
    if (record_timeline) {
      records.push_back({offset, block.size, block.born_s, MonotonicSeconds(),
                         block.segment});
    }
  }

  void TakeTimes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(region_mutex) {
    for (const SegmentTime& time : times.Take()) {
      recorder.Took(time.kind, time.seconds);
      if (!time.of_timeline) continue;
      runs.push_back({time.kind, time.start_s, time.start_s + time.seconds});
    }
  }

  void Mismatched() ABSL_EXCLUSIVE_LOCKS_REQUIRED(region_mutex) {
    if (++mismatches > 1) return;
    std::fprintf(stderr,
                 "sluice: an allocation did not match the plan and came from "
                 "the pool (counted, logged once): %s\n",
                 replay.mismatch().c_str());
  }

  std::string OutOfMemory(Bytes bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(region_mutex) {
    return fmt::format(
        "out of GPU memory: asked {}, used {} of {}, planned area {}, largest "
        "free {}{}",
        FormatBytes(bytes), FormatBytes(used), FormatBytes(size),
        FormatBytes(plan_size), FormatBytes(pool.largest_free()),
        segment.empty() ? "" : fmt::format(", in segment '{}'", segment));
  }
};

// The regions of the process, also of destroyed allocators with living blocks.
struct RegionAllocator::Table {
  std::vector<std::shared_ptr<Impl>> regions ABSL_GUARDED_BY(region_mutex);
};

RegionAllocator::Table& RegionAllocator::Regions() {
  static Table* table = new Table;  // outlives tensors freed at exit
  return *table;
}

void RegionAllocator::Delete(void* block) {
  if (block == nullptr || host_memory::Free(block)) return;
  Table& table = Regions();
  const MutexLock lock(region_mutex);
  for (auto region = table.regions.rbegin(); region != table.regions.rend();
       ++region) {
    Impl& impl = **region;
    const Bytes offset(static_cast<std::byte*>(block) - impl.base);
    if (!impl.blocks.contains(offset.count())) continue;
    impl.Free(offset);
    if (impl.retired && impl.blocks.empty()) {
      table.regions.erase(std::next(region).base());
    }
    return;
  }
  SLUICE_CHECK(!"freed a block that no region knows");
}

Bytes RegionAlignment(c10::Device device) {
  return device.is_cpu() ? Bytes(64) : Bytes(256);
}

RegionAllocator::RegionAllocator(c10::Device device, std::byte* base,
                                 Bytes size)
    : device_(device), impl_(std::make_shared<Impl>(device, base, size)) {
  SLUICE_CHECK(device.is_cpu() ||
               (device.is_cuda() && LoadedTorchCuda() != nullptr));
  SLUICE_CHECK(
      reinterpret_cast<uintptr_t>(base) % RegionAlignment(device).size() == 0);
  const MutexLock lock(region_mutex);
  Regions().regions.push_back(impl_);
}

RegionAllocator::~RegionAllocator() {
  Disarm();
  const MutexLock lock(region_mutex);
  impl_->retired = true;
  impl_->records.clear();
  impl_->runs.clear();
  impl_->times.Close();
  if (impl_->blocks.empty()) std::erase(Regions().regions, impl_);
}

void RegionAllocator::Arm() {
  const MutexLock lock(region_mutex);
  impl_->compute_thread = std::this_thread::get_id();
  if (impl_->armed) return;
  if (device_.is_cuda()) {
    LoadedTorchCuda()->Install(this, device_);
  } else {
    impl_->former = c10::GetCPUAllocator();
    c10::SetCPUAllocator(this, kArmedPriority);
  }
  impl_->armed = true;
}

void RegionAllocator::Disarm() {
  const MutexLock lock(region_mutex);
  if (!std::exchange(impl_->armed, false)) return;
  if (device_.is_cuda()) return LoadedTorchCuda()->Remove();
  c10::SetCPUAllocator(std::exchange(impl_->former, nullptr), kArmedPriority);
}

absl::Status RegionAllocator::SetPlan(
    const std::vector<plan::SegmentPlan>& segments,
    const std::vector<plan::SegmentKind>& kinds, Bytes peak) {
  const MutexLock lock(region_mutex);
  Impl& impl = *impl_;
  if (!impl.replay.idle()) {
    return absl::FailedPreconditionError(
        "blocks of the former plan are still alive: set a plan between steps");
  }
  const Bytes alignment = RegionAlignment(device_);
  peak = RoundUp(peak, alignment);
  SLUICE_ASSIGN_OR_RETURN(PlanReplay replay,
                          PlanReplay::Make(segments, kinds, peak, alignment));
  if (impl.plan_size > Bytes(0)) impl.pool.Free(impl.plan_base, impl.plan_size);
  const std::optional<Bytes> place =
      peak > Bytes(0) ? impl.pool.AllocateLow(peak) : Bytes(0);
  if (!place.has_value()) {
    const Bytes largest = impl.pool.largest_free();
    // The former area was just freed, so there is a place of its size.
    if (impl.plan_size > Bytes(0)) {
      impl.plan_base = *impl.pool.AllocateLow(impl.plan_size);
    }
    return ShortOf(
        Shortage::kGpuMemory,
        fmt::format(
            "the plan needs {} in one piece, and the largest free piece of the "
            "region's {} is {}: {} is in use",
            FormatBytes(peak), FormatBytes(impl.size), FormatBytes(largest),
            FormatBytes(impl.used)));
  }
  impl.plan_base = *place;
  impl.plan_size = peak;
  impl.replay = std::move(replay);
  return absl::OkStatus();
}

void RegionAllocator::BeginSegment(const std::string& kind) {
  const MutexLock lock(region_mutex);
  Impl& impl = *impl_;
  if (!impl.OnComputeThread() || impl.segment_depth++ > 0) return;
  impl.segment = *impl.names.insert(kind).first;
  if (impl.observer != nullptr) impl.observer->SegmentBegan(impl.segment);
  impl.replay.Begin(kind);
  const bool recorded = impl.record_segments && !impl.replay.planned(kind);
  if (recorded) impl.recorder.Begin(kind);
  if (recorded || impl.record_timeline) {
    impl.times.Begin(impl.segment, impl.record_timeline);
  }
}

void RegionAllocator::EndSegment() {
  const MutexLock lock(region_mutex);
  Impl& impl = *impl_;
  if (!impl.OnComputeThread() || --impl.segment_depth > 0) return;
  impl.times.End();
  if (impl.observer != nullptr) impl.observer->SegmentEnded(impl.segment);
  impl.segment = {};
  impl.replay.End();
  if (impl.recorder.recording()) impl.recorder.End();
  impl.TakeTimes();
}

void RegionAllocator::TimeSegmentsOn(device::Driver* driver,
                                     device::Stream stream) {
  const MutexLock lock(region_mutex);
  impl_->times.UseStream(driver, stream);
}

absl::Status RegionAllocator::times_fault() const {
  const MutexLock lock(region_mutex);
  return impl_->times.fault();
}

// Waits without the lock, because the stream's work may free blocks.
void RegionAllocator::AwaitTimes() {
  std::shared_ptr<device::StreamTimer> timer;
  {
    const MutexLock lock(region_mutex);
    timer = impl_->times.timer();
  }
  const absl::Status reached =
      timer != nullptr ? timer->Await() : absl::OkStatus();
  const MutexLock lock(region_mutex);
  impl_->times.Keep(reached);
  impl_->TakeTimes();
}

std::vector<plan::SegmentKind> RegionAllocator::TakeRecorded() {
  AwaitTimes();
  const MutexLock lock(region_mutex);
  return impl_->recorder.Take();
}

void RegionAllocator::RecordSegments(bool on) {
  const MutexLock lock(region_mutex);
  impl_->record_segments = on;
}

void RegionAllocator::Observe(SegmentObserver* observer) {
  const MutexLock lock(region_mutex);
  impl_->observer = observer;
}

void RegionAllocator::AlignTimes() {
  std::shared_ptr<device::StreamTimer> timer;
  device::Stream stream;
  {
    const MutexLock lock(region_mutex);
    timer = impl_->times.timer();
    stream = impl_->times.stream();
  }
  if (timer == nullptr) return;
  const absl::Status aligned = timer->Align(stream);
  const MutexLock lock(region_mutex);
  impl_->times.Keep(aligned);
}

void RegionAllocator::RecordTimeline(bool on) {
  if (on) AlignTimes();
  const MutexLock lock(region_mutex);
  impl_->record_timeline = on;
  if (!on) return;
  const double now_s = MonotonicSeconds();
  for (auto& [offset, block] : impl_->blocks) block.born_s = now_s;
}

std::vector<SegmentRun> RegionAllocator::TakeRuns() {
  AwaitTimes();
  const MutexLock lock(region_mutex);
  return std::exchange(impl_->runs, {});
}

std::vector<BlockRecord> RegionAllocator::TakeBlocks() {
  const MutexLock lock(region_mutex);
  std::vector<BlockRecord> records = std::exchange(impl_->records, {});
  for (const auto& [offset, block] : impl_->blocks) {
    records.push_back({Bytes(offset), block.size, block.born_s,
                       block.born_s - 1, block.segment});
  }
  return records;
}

AllocatorStats RegionAllocator::stats() const {
  const host_memory::Usage host = host_memory::Current();
  const MutexLock lock(region_mutex);
  return {.used = impl_->used,
          .peak = impl_->peak,
          .planned = impl_->plan_size,
          .host_used = host.used,
          .host_peak = host.peak,
          .planned_allocations = impl_->planned_allocations,
          .mismatches = impl_->mismatches};
}

void RegionAllocator::ResetPeak() {
  const MutexLock lock(region_mutex);
  impl_->peak = impl_->used;
  host_memory::ResetPeak();
}

c10::DataPtr RegionAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &Delete, device_};
  const Bytes size(static_cast<int64_t>(bytes));
  if (device_.is_cpu() && host_memory::Active()) {
    void* block = host_memory::Allocate(size);
    return {block, block, &Delete, device_};
  }
  std::string failure;
  {
    const MutexLock lock(region_mutex);
    std::byte* block = impl_->Allocate(RoundUp(size, RegionAlignment(device_)));
    if (block != nullptr) return {block, block, &Delete, device_};
    failure = impl_->OutOfMemory(size);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, failure);
}

}  // namespace sluice::runtime
