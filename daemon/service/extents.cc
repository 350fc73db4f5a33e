#include "daemon/service/extents.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "daemon/crash/crash_point.h"
#include "daemon/service/log/log.h"
#include "proto/base/numa.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr absl::Duration kBetweenTries = absl::Milliseconds(10);

device::Placement PlacementOf(PoolId pool) {
  return pool.kind == PoolKind::kGpu
             ? device::Placement::Gpu(DeviceIndex(pool.ordinal))
             : device::Placement::Host(NumaIndex(pool.ordinal));
}

absl::StatusOr<ExportedMemory> ExportMemory(device::Driver& driver,
                                            device::Memory memory) {
  auto fd = driver.Export(memory);
  if (!fd.ok()) {
    driver.Release(memory).IgnoreError();
    return fd.status();
  }
  return ExportedMemory{memory,
                        std::make_shared<const UniqueFd>(*std::move(fd))};
}

// Logs a failure, because no caller could handle it.
void ReleaseMemory(device::Driver& driver, ExportedMemory memory) {
  memory.fd.reset();
  if (memory.memory == device::Memory()) return;
  if (const auto released = driver.Release(memory.memory); !released.ok()) {
    WriteLog(LogLevel::kError, std::string(released.message()));
  }
}

}  // namespace

Extents::Extents(device::Driver* driver, Arena* arena, Loop* loop,
                 Handover* handover, Made made, absl::Duration patience)
    : driver_(driver),
      arena_(arena),
      loop_(loop),
      handover_(handover),
      made_(std::move(made)),
      patience_(patience) {}

Extents::Lane& Extents::LaneOf(PoolId pool) {
  const bool is_host = pool.kind == PoolKind::kHost;
  auto& lane = lanes_[is_host ? pool.ordinal + 1 : 0];
  if (lane == nullptr) {
    lane = std::make_unique<Lane>();
    lane->thread = std::make_unique<TaskThread>(
        is_host ? fmt::format("device-numa{}", pool.ordinal) : "device");
    if (is_host) {
      // The kernel places a page on the node that touches it first.
      lane->thread->Run(
          [numa = NumaIndex(pool.ordinal)] { StayOn(CoresOfNode(numa)); });
    }
  }
  return *lane;
}

bool Extents::Finish(absl::Duration patience) {
  const absl::Time deadline = clock_.Now() + patience;
  bool finished = true;
  for (const auto& [key, lane] : lanes_) {
    finished &= lane->thread->Finish(deadline - clock_.Now());
  }
  return finished;
}

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

void Extents::Make(ExtentId id, PoolId pool, Bytes size, PrincipalId who) {
  if (const auto ready = arena_->Take(pool, size)) {
    // Tell posts: policy is in the middle of a decision.
    return Tell({{id, pool, *ready}});
  }
  Lane& lane = LaneOf(pool);
  const MutexLock lock(mutex_);
  arena_->Pause(pool, true);
  lane.wanted.Push(who, {id, pool, size});
  Wake(lane);
  loop_->ExpectSoon();
}

void Extents::Wake(Lane& lane) {
  if (std::exchange(lane.works, true)) return;
  lane.thread->Run([this, &lane] { Work(lane); });
}

void Extents::Work(Lane& lane) {
  std::optional<ExportedMemory> unwanted;
  std::optional<std::pair<PrincipalId, Wanted>> next;
  {
    const MutexLock lock(mutex_);
    if (!lane.unwanted.empty()) {
      unwanted = std::move(lane.unwanted.front());
      lane.unwanted.pop_front();
    } else {
      next = lane.wanted.Pop();
      lane.works = next.has_value();
    }
  }
  if (unwanted) Release(lane, *std::move(unwanted));
  if (next) MakeOne(lane, next->first, next->second);
  if (unwanted || next) lane.thread->Run([this, &lane] { Work(lane); });
}

void Extents::Release(Lane& lane, ExportedMemory memory) {
  ReleaseMemory(*driver_, std::move(memory));
  Pass("extent-released");
  if (lane.waiting.empty()) arena_->Refill();
}

void Extents::MakeOne(Lane& lane, PrincipalId who, const Wanted& wanted) {
  const absl::Time start = clock_.Now();
  if (lane.made.empty()) lane.made_since = start;
  auto memory = Create(wanted);
  const absl::Time end = clock_.Now();
  if (absl::IsResourceExhausted(memory.status())) {
    lane.waiting.push_back({wanted, end + patience_, memory.status()});
    if (lane.waiting.size() == 1) RetryLater(lane);
  } else {
    lane.made.push_back({wanted.id, wanted.pool, std::move(memory)});
  }
  bool was_last = false;
  {
    const MutexLock lock(mutex_);
    was_last = lane.wanted.waiting(who) == 0;
    if (lane.wanted.empty()) arena_->Pause(wanted.pool, false);
    lane.wanted.Spent(who, end - start);
  }
  // A lease has many extents, and waking the loop for each would cost more than
  // making them.
  if (was_last || end - lane.made_since >= kTellEvery) {
    Tell(std::exchange(lane.made, {}));
  }
}

void Extents::RetryLater(Lane& lane) {
  if (lane.waiting.empty()) return;
  lane.thread->RunAfter(kBetweenTries, [this, &lane] { Retry(lane); });
}

void Extents::Retry(Lane& lane) {
  std::vector<Waiting> still;
  // Smallest size refused in this round.
  std::map<PoolId, Bytes> refused;
  Tries made;
  const absl::Time now = clock_.Now();
  for (Waiting& each : lane.waiting) {
    const Wanted& wanted = each.wanted;
    const auto known = refused.find(wanted.pool);
    if (known == refused.end() || wanted.size < known->second) {
      auto memory = Create(wanted);
      if (!absl::IsResourceExhausted(memory.status())) {
        made.push_back({wanted.id, wanted.pool, std::move(memory)});
        continue;
      }
      each.why = memory.status();
      refused[wanted.pool] = wanted.size;
    }
    if (now >= each.deadline) {
      made.push_back({wanted.id, wanted.pool, std::move(each.why)});
    } else {
      still.push_back(std::move(each));
    }
  }
  lane.waiting = std::move(still);
  Tell(std::move(made));
  RetryLater(lane);
}

void Extents::Tell(Tries made) {
  if (made.empty()) return;
  Pass("extent-made");
  if (handover_ != nullptr && handover_->keeps()) {
    for (const Try& each : made) {
      if (!each.made.ok()) continue;
      const auto fd = driver_->Keep(each.made->memory);
      if (fd.ok()) {
        handover_->Keep(Handover::NameOf(each.id), fd->get());
      } else {
        handover_->CannotKeep(Handover::NameOf(each.id), fd.status());
      }
    }
  }
  Pass("extent-put");
  auto tell = [this, made = std::move(made)] {
    Pass("extent-stored");
    Record(made);
  };
  if (handover_ != nullptr) return handover_->WhenKept(std::move(tell));
  loop_->Post(std::move(tell));
}

void Extents::Record(const Tries& made) {
  std::vector<Core::ExtentOutcome> outcomes;
  for (const Try& each : made) {
    if (each.made.ok()) extents_[each.id] = {*each.made, each.pool};
    outcomes.push_back({each.id, each.made.status()});
  }
  made_(outcomes);
}

absl::Status Extents::Adopt(ExtentId id, PoolId pool, Bytes size,
                            UniqueFd kept) {
  // See extents_. A duplicate of `kept`, so adopted memory need not be
  // exported.
  std::shared_ptr<const UniqueFd> fd;
  if (!driver_->TellsHolders()) {
    SLUICE_ASSIGN_OR_RETURN(UniqueFd own, kept.Duplicate());
    fd = std::make_shared<const UniqueFd>(std::move(own));
  }
  const auto memory = driver_->Adopt(std::move(kept), PlacementOf(pool), size);
  // If a GPU does not answer any more, only the descriptor is kept, so that
  // the jobs of other GPUs go on.
  const bool is_lost = pool.kind == PoolKind::kGpu &&
                       absl::IsUnavailable(memory.status()) && fd != nullptr;
  if (!is_lost) SLUICE_RETURN_IF_ERROR(memory.status());
  extents_[id] = {{memory.value_or(device::Memory()), std::move(fd)}, pool};
  return absl::OkStatus();
}

void Extents::AdoptMade(ExtentId id, PoolId pool, Bytes size, UniqueFd kept) {
  const absl::Status adopted = Adopt(id, pool, size, std::move(kept));
  if (!adopted.ok()) handover_->Drop(Handover::NameOf(id));
  loop_->Post([this, id, adopted] { made_({{id, adopted}}); });
}

void Extents::Abandon() {
  for (auto& [id, extent] : std::exchange(extents_, {})) {
    ReleaseMemory(*driver_, std::move(extent.memory));
  }
}

void Extents::Destroy(ExtentId id) {
  const auto found = extents_.find(id);
  SLUICE_CHECK(found != extents_.end());
  Kept extent = std::move(found->second);
  extents_.erase(found);
  if (handover_ != nullptr) handover_->Drop(Handover::NameOf(id));
  Pass("extent-dropped");
  Lane& lane = LaneOf(extent.pool);
  const MutexLock lock(mutex_);
  lane.unwanted.push_back(std::move(extent.memory));
  Wake(lane);
}

absl::StatusOr<std::shared_ptr<const UniqueFd>> Extents::Fd(ExtentId id) {
  ExportedMemory& extent = extents_.at(id).memory;
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
  ExportedMemory& extent = found->second.memory;
  extent.fd.reset();
  const auto held = driver_->HeldByOthers(extent.memory);
  if (held.ok()) return *held ? Held::kYes : Held::kNo;
  WriteLog(LogLevel::kError, std::string(held.status().message()));
  return Held::kUnknown;
}

Arena::Arena(device::Driver* driver, const Options& options)
    : driver_(driver), options_(options) {
  if (options_.ready < options_.extent) return;
  const MutexLock lock(mutex_);
  for (const NumaIndex numa : options_.nodes) {
    Node& node = nodes_[numa.value()];
    node.thread =
        std::make_unique<TaskThread>(fmt::format("arena{}", numa.value()));
    node.thread->Run([numa] { StayOn(CoresOfNode(numa)); });
    Fill(numa.value(), node);
  }
}

Arena::~Arena() {
  std::vector<std::unique_ptr<TaskThread>> threads;
  {
    const MutexLock lock(mutex_);
    for (auto& [numa, node] : nodes_) threads.push_back(std::move(node.thread));
  }
  threads.clear();
  const MutexLock lock(mutex_);
  for (auto& [numa, node] : nodes_) {
    for (ExportedMemory& each : node.ready)
      ReleaseMemory(*driver_, std::move(each));
  }
}

bool Arena::Wants(const Node& node) const {
  const auto has = static_cast<int64_t>(node.ready.size());
  return !node.full && !node.paused &&
         options_.extent * (has + 1) <= options_.ready;
}

void Arena::Fill(uint64_t numa, Node& node) {
  if (node.filling || node.thread == nullptr || !Wants(node)) return;
  node.filling = true;
  node.room_since = false;
  node.thread->Run([this, numa] { MakeOne(numa); });
}

void Arena::MakeOne(uint64_t numa) {
  const auto memory = driver_->Create(device::Placement::Host(NumaIndex(numa)),
                                      options_.extent);
  auto made = memory.ok() ? ExportMemory(*driver_, *memory) : memory.status();
  std::optional<ExportedMemory> surplus;
  {
    const MutexLock lock(mutex_);
    Node& node = nodes_.at(numa);
    node.filling = false;
    if (!made.ok()) {
      node.full = !node.room_since;
      Fill(numa, node);
    } else if (node.full) {  // MakeRoom was called while the extent was made
      surplus = *std::move(made);
    } else {
      node.ready.push_back(*std::move(made));
      Fill(numa, node);
    }
  }
  if (surplus) ReleaseMemory(*driver_, *std::move(surplus));
  if (!made.ok() && !absl::IsResourceExhausted(made.status())) {
    WriteLog(LogLevel::kWarning,
             fmt::format("no host memory is made ahead on NUMA node {}: {}",
                         numa, std::string(made.status().message())));
  }
}

std::optional<ExportedMemory> Arena::Take(PoolId pool, Bytes size) {
  if (pool.kind != PoolKind::kHost || size != options_.extent) return {};
  const MutexLock lock(mutex_);
  const auto found = nodes_.find(pool.ordinal);
  if (found == nodes_.end() || found->second.ready.empty()) return {};
  ExportedMemory taken = std::move(found->second.ready.back());
  found->second.ready.pop_back();
  Fill(pool.ordinal, found->second);
  return taken;
}

bool Arena::MakeRoom(PoolId pool) {
  std::vector<ExportedMemory> given_back;
  {
    const MutexLock lock(mutex_);
    const auto found = nodes_.find(pool.ordinal);
    if (pool.kind != PoolKind::kHost || found == nodes_.end()) return false;
    found->second.full = true;
    found->second.room_since = false;
    given_back.swap(found->second.ready);
  }
  for (ExportedMemory& each : given_back)
    ReleaseMemory(*driver_, std::move(each));
  return !given_back.empty();
}

void Arena::Pause(PoolId pool, bool paused) {
  const MutexLock lock(mutex_);
  const auto found = nodes_.find(pool.ordinal);
  if (pool.kind != PoolKind::kHost || found == nodes_.end()) return;
  found->second.paused = paused;
  Fill(pool.ordinal, found->second);
}

void Arena::Refill() {
  const MutexLock lock(mutex_);
  for (auto& [numa, node] : nodes_) {
    node.full = false;
    node.room_since = true;
    Fill(numa, node);
  }
}

Bytes Arena::ready(NumaIndex numa) const {
  const MutexLock lock(mutex_);
  const auto found = nodes_.find(numa.value());
  if (found == nodes_.end()) return Bytes(0);
  return options_.extent * static_cast<int64_t>(found->second.ready.size());
}

}  // namespace sluice::daemon
