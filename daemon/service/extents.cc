#include "daemon/service/extents.h"

#include <utility>

#include "daemon/crash/crash_point.h"
#include "daemon/service/log/log.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr absl::Duration kBetweenTries = absl::Milliseconds(10);

device::Placement PlacementOf(PoolId pool) {
  return pool.kind == PoolKind::kGpu
             ? device::Placement::Gpu(DeviceIndex(pool.ordinal))
             : device::Placement::Host(NumaIndex(pool.ordinal));
}

}  // namespace

Extents::Extents(device::Driver* driver, Arena* arena, Loop* loop,
                 Handover* handover, Made made, absl::Duration patience)
    : driver_(driver),
      arena_(arena),
      loop_(loop),
      handover_(handover),
      made_(std::move(made)),
      patience_(patience),
      device_("device") {}

absl::StatusOr<ExportedMemory> Extents::Create(const Wanted& wanted) {
  const device::Placement where = PlacementOf(wanted.pool);
  auto memory = driver_->Create(where, wanted.size);
  if (absl::IsResourceExhausted(memory.status()) &&
      arena_->MakeRoom(wanted.pool)) {
    memory = driver_->Create(where, wanted.size);
  }
  SLUICE_RETURN_IF_ERROR(memory.status());
  return ExportMemory(*driver_, *memory);
}

void Extents::Make(ExtentId id, PoolId pool, Bytes size) {
  if (const auto ready = arena_->Take(pool, size)) {
    // Later, because policy is in the middle of a decision.
    return Tell({{id, *ready}});
  }
  const MutexLock lock(mutex_);
  if (!open_) {
    open_ = std::make_shared<Batch>();
    device_.Run([this, batch = open_] { MakeBatch(batch); });
  }
  open_->push_back({id, pool, size});
  loop_->ExpectSoon();
}

void Extents::MakeBatch(const std::shared_ptr<Batch>& batch) {
  Batch wanted;
  {
    const MutexLock lock(mutex_);
    if (open_ == batch) open_ = nullptr;
    wanted.swap(*batch);
  }
  MakeAll(wanted);
}

void Extents::MakeAll(const Batch& wanted) {
  const absl::Time deadline = clock_.Now() + patience_;
  const bool retrying = !waiting_.empty();
  Tries made;
  made.reserve(wanted.size());
  for (const Wanted& each : wanted) {
    auto memory = Create(each);
    if (absl::IsResourceExhausted(memory.status())) {
      waiting_.push_back({each, deadline, memory.status()});
    } else {
      made.emplace_back(each.id, std::move(memory));
    }
  }
  Tell(std::move(made));
  if (!retrying) RetryLater();
}

void Extents::RetryLater() {
  if (waiting_.empty()) return;
  device_.RunAfter(kBetweenTries, [this] { Retry(); });
}

void Extents::Retry() {
  std::vector<Waiting> still;
  std::map<PoolId, Bytes> refused;  // the least of each pool, just now
  Tries made;
  const absl::Time now = clock_.Now();
  for (Waiting& each : waiting_) {
    const Wanted& wanted = each.wanted;
    const auto known = refused.find(wanted.pool);
    if (known == refused.end() || wanted.size < known->second) {
      auto memory = Create(wanted);
      if (!absl::IsResourceExhausted(memory.status())) {
        made.emplace_back(wanted.id, std::move(memory));
        continue;
      }
      each.why = memory.status();
      refused[wanted.pool] = wanted.size;
    }
    if (now >= each.deadline) {
      made.emplace_back(wanted.id, std::move(each.why));
    } else {
      still.push_back(std::move(each));
    }
  }
  waiting_ = std::move(still);
  Tell(std::move(made));
  RetryLater();
}

void Extents::Tell(Tries made) {
  if (made.empty()) return;
  Pass(CrashPoint::kExtentMade);
  if (handover_ != nullptr && handover_->keeps()) {
    for (const auto& [id, extent] : made) {
      if (!extent.ok()) continue;
      const auto fd = driver_->Keep(extent->memory);
      if (fd.ok()) {
        handover_->Keep(Handover::NameOf(id), fd->get());
      } else {
        handover_->CannotKeep(Handover::NameOf(id), fd.status());
      }
    }
  }
  Pass(CrashPoint::kExtentPut);
  auto tell = [this, made = std::move(made)] {
    Pass(CrashPoint::kExtentStored);
    Record(made);
  };
  if (handover_ != nullptr) return handover_->WhenKept(std::move(tell));
  loop_->Post(std::move(tell));
}

void Extents::Record(const Tries& made) {
  std::vector<Core::ExtentOutcome> outcomes;
  for (const auto& [id, extent] : made) {
    if (extent.ok()) extents_[id] = *extent;
    outcomes.push_back({id, extent.status()});
  }
  made_(outcomes);
}

absl::Status Extents::Adopt(ExtentId id, PoolId pool, Bytes size,
                            UniqueFd kept) {
  // Adopted memory may not be exported there, and is leased all the same.
  std::shared_ptr<const UniqueFd> fd;
  if (!driver_->TellsHolders()) {
    SLUICE_ASSIGN_OR_RETURN(UniqueFd own, kept.Duplicate());
    fd = std::make_shared<const UniqueFd>(std::move(own));
  }
  SLUICE_ASSIGN_OR_RETURN(
      const device::Memory memory,
      driver_->Adopt(std::move(kept), PlacementOf(pool), size));
  extents_[id] = {memory, std::move(fd)};
  return absl::OkStatus();
}

void Extents::AdoptMade(ExtentId id, PoolId pool, Bytes size, UniqueFd kept) {
  const absl::Status adopted = Adopt(id, pool, size, std::move(kept));
  if (!adopted.ok()) handover_->Drop(Handover::NameOf(id));
  loop_->Post([this, id, adopted] { made_({{id, adopted}}); });
}

void Extents::Abandon() {
  for (auto& [id, extent] : std::exchange(extents_, {})) {
    ReleaseMemory(*driver_, std::move(extent));
  }
}

void Extents::Destroy(ExtentId id) {
  const auto found = extents_.find(id);
  SLUICE_CHECK(found != extents_.end());
  auto extent = std::make_shared<ExportedMemory>(std::move(found->second));
  extents_.erase(found);
  if (handover_ != nullptr) handover_->Drop(Handover::NameOf(id));
  Pass(CrashPoint::kExtentDropped);
  {
    const MutexLock lock(mutex_);
    open_ = nullptr;
  }
  device_.Run([this, extent] {
    ReleaseMemory(*driver_, std::move(*extent));
    Pass(CrashPoint::kExtentReleased);
    if (waiting_.empty()) arena_->Refill();
  });
}

absl::StatusOr<std::shared_ptr<const UniqueFd>> Extents::Fd(ExtentId id) {
  ExportedMemory& extent = extents_.at(id);
  if (extent.fd == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, driver_->Export(extent.memory));
    extent.fd = std::make_shared<const UniqueFd>(std::move(fd));
  }
  const auto fd = extent.fd;
  if (driver_->TellsHolders()) extent.fd.reset();
  return fd;
}

Held Extents::HeldByOthers(ExtentId id) {
  const auto found = extents_.find(id);
  if (found == extents_.end() || !driver_->TellsHolders()) {
    return Held::kUnknown;
  }
  ExportedMemory& extent = found->second;
  extent.fd.reset();
  const auto held = driver_->HeldByOthers(extent.memory);
  if (held.ok()) return *held ? Held::kYes : Held::kNo;
  WriteLog(LogLevel::kError, std::string(held.status().message()));
  return Held::kUnknown;
}

}  // namespace sluice::daemon
