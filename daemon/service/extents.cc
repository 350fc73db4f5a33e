#include "daemon/service/extents.h"

#include <utility>

#include "absl/time/clock.h"
#include "daemon/service/log.h"
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

Extents::Extents(device::Driver* driver, Loop* loop, Made made,
                 absl::Duration patience)
    : driver_(driver),
      loop_(loop),
      made_(std::move(made)),
      patience_(patience),
      device_("device") {}

absl::StatusOr<Extents::Extent> Extents::Share(device::Memory memory) {
  auto fd = driver_->Export(memory);
  if (!fd.ok()) {
    driver_->Release(memory).IgnoreError();
    return fd.status();
  }
  return Extent{memory, std::make_shared<const UniqueFd>(*std::move(fd))};
}

void Extents::Make(ExtentId id, PoolId pool, Bytes size) {
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
  MakeAll(wanted, clock_.Now() + patience_);
}

void Extents::MakeAll(const Batch& wanted, absl::Time deadline) {
  Batch later;
  std::vector<std::pair<ExtentId, absl::StatusOr<Extent>>> made;
  made.reserve(wanted.size());
  for (const Wanted& each : wanted) {
    const auto memory = driver_->Create(PlacementOf(each.pool), each.size);
    if (memory.ok()) {
      made.emplace_back(each.id, Share(*memory));
    } else if (absl::IsResourceExhausted(memory.status()) &&
               clock_.Now() < deadline) {
      later.push_back(each);
    } else {
      made.emplace_back(each.id, memory.status());
    }
  }
  if (!made.empty()) {
    loop_->Post([this, made = std::move(made)]() mutable {
      for (auto& [id, extent] : made) Keep(id, std::move(extent));
    });
  }
  if (!later.empty()) {
    absl::SleepFor(kBetweenTries);
    device_.Run([this, later = std::move(later), deadline] {
      MakeAll(later, deadline);
    });
  }
}

void Extents::Keep(ExtentId id, absl::StatusOr<Extent> extent) {
  const absl::Status status = extent.status();
  if (status.ok()) extents_[id] = *std::move(extent);
  made_(id, status);
}

void Extents::Destroy(ExtentId id) {
  const auto found = extents_.find(id);
  SLUICE_CHECK(found != extents_.end());
  auto extent = std::make_shared<Extent>(std::move(found->second));
  extents_.erase(found);
  {
    const MutexLock lock(mutex_);
    open_ = nullptr;
  }
  device_.Run([this, extent] {
    extent->fd.reset();
    if (const auto released = driver_->Release(extent->memory);
        !released.ok()) {
      WriteLog(LogLevel::kError, std::string(released.message()));
    }
  });
}

std::shared_ptr<const UniqueFd> Extents::fd(ExtentId id) const {
  return extents_.at(id).fd;
}

}  // namespace sluice::daemon
