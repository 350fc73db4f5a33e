#include "daemon/service/extents.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "daemon/crash/crash_point.h"
#include "daemon/service/log/log.h"
#include "proto/base/find.h"
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
  const auto fd = ToShared(driver.Export(memory));
  if (fd.ok()) return ExportedMemory{memory, *fd};
  driver.Release(memory).IgnoreError();
  return fd.status();
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
      // The kernel places a page on the NUMA node that touches it first.
      lane->thread->Run(
          [numa = NumaIndex(pool.ordinal)] { StayOn(CoresOfNode(numa)); });
    }
  }
  return *lane;
}

bool Extents::Finish(absl::Duration patience) {
  const absl::Time deadline = loop_->now() + patience;
  bool finished = true;
  for (const auto& [key, lane] : lanes_) {
    finished &= lane->thread->Finish(deadline - loop_->now());
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
    // The report comes later, on the loop: policy is still deciding.
    return Tell({{id, pool, size, *ready}});
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
  if (unwanted) {
    ReleaseMemory(*driver_, *std::move(unwanted));
    Pass("extent-released");
    if (lane.waiting.empty()) arena_->Refill();
  }
  if (next) MakeOne(lane, next->first, std::move(next->second));
  if (unwanted || next) lane.thread->Run([this, &lane] { Work(lane); });
}

void Extents::MakeOne(Lane& lane, PrincipalId who, Wanted wanted) {
  const absl::Time start = loop_->now();
  if (lane.made.empty()) lane.made_since = start;
  wanted.made = Create(wanted);
  const absl::Time end = loop_->now();
  wanted.deadline = end + patience_;
  const PoolId pool = wanted.pool;
  const bool waits = absl::IsResourceExhausted(wanted.made.status());
  (waits ? lane.waiting : lane.made).push_back(std::move(wanted));
  if (waits && lane.waiting.size() == 1) RetryLater(lane);
  bool was_last = false;
  {
    const MutexLock lock(mutex_);
    was_last = lane.wanted.waiting(who) == 0;
    if (lane.wanted.empty()) arena_->Pause(pool, false);
    lane.wanted.Spent(who, end - start);
  }
  // A lease has many extents, and waking the loop for each costs too much.
  if (was_last || end - lane.made_since >= kTellEvery) {
    Tell(std::exchange(lane.made, {}));
  }
}

void Extents::RetryLater(Lane& lane) {
  if (lane.waiting.empty()) return;
  lane.thread->RunAfter(kBetweenTries, [this, &lane] { Retry(lane); });
}

void Extents::Retry(Lane& lane) {
  std::vector<Wanted> still, made;
  // Smallest size refused in this round.
  std::map<PoolId, Bytes> refused;
  const absl::Time now = loop_->now();
  for (Wanted& each : lane.waiting) {
    const Bytes* const least = FindOrNull(refused, each.pool);
    const bool is_tried = least == nullptr || each.size < *least;
    if (is_tried) each.made = Create(each);
    const bool is_full = absl::IsResourceExhausted(each.made.status());
    if (is_tried && is_full) refused[each.pool] = each.size;
    (is_full && now < each.deadline ? still : made).push_back(std::move(each));
  }
  lane.waiting = std::move(still);
  Tell(std::move(made));
  RetryLater(lane);
}

void Extents::Tell(std::vector<Wanted> made) {
  if (made.empty()) return;
  Pass("extent-made");
  if (handover_->keeps()) {
    for (const Wanted& each : made) {
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
  handover_->WhenKept([this, made = std::move(made)] {
    Pass("extent-stored");
    std::vector<Core::ExtentOutcome> outcomes;
    for (const Wanted& each : made) {
      if (each.made.ok()) extents_[each.id] = {*each.made, each.pool};
      outcomes.push_back({each.id, each.made.status()});
    }
    made_(outcomes);
  });
}

absl::Status Extents::Adopt(ExtentId id, PoolId pool, Bytes size,
                            UniqueFd kept) {
  // With a duplicate, adopted memory need not be exported. A device that
  // reports holders would count the duplicate as a holder.
  SharedFd fd;
  if (!driver_->TellsHolders()) {
    SLUICE_ASSIGN_OR_RETURN(fd, ToShared(kept.Duplicate()));
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
  auto extent = extents_.extract(id);
  SLUICE_CHECK(!extent.empty());
  handover_->Drop(Handover::NameOf(id));
  Pass("extent-dropped");
  Lane& lane = LaneOf(extent.mapped().pool);
  const MutexLock lock(mutex_);
  lane.unwanted.push_back(std::move(extent.mapped().memory));
  Wake(lane);
}

absl::StatusOr<SharedFd> Extents::Fd(ExtentId id) {
  ExportedMemory& extent = extents_.at(id).memory;
  if (extent.fd == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(extent.fd,
                            ToShared(driver_->Export(extent.memory)));
  }
  const SharedFd fd = extent.fd;
  if (driver_->TellsHolders()) extent.fd.reset();
  return fd;
}

Held Extents::HeldByOthers(ExtentId id) {
  Kept* const extent = FindOrNull(extents_, id);
  if (extent == nullptr || !driver_->TellsHolders()) return Held::kUnknown;
  extent->memory.fd.reset();
  const auto held = driver_->HeldByOthers(extent->memory.memory);
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
    node.numa = numa;
    node.thread =
        std::make_unique<TaskThread>(fmt::format("arena{}", numa.value()));
    node.thread->Run([numa] { StayOn(CoresOfNode(numa)); });
    Fill(node);
  }
}

// Ends all threads before it releases memory, which they use.
Arena::~Arena() {
  for (auto& [numa, node] : nodes_) {
    node.thread->Finish(absl::InfiniteDuration());
  }
  for (auto& [numa, node] : nodes_) {
    for (ExportedMemory& each : node.ready) {
      ReleaseMemory(*driver_, std::move(each));
    }
  }
}

Arena::Node* Arena::NodeOf(PoolId pool) {
  if (pool.kind != PoolKind::kHost) return nullptr;
  return FindOrNull(nodes_, pool.ordinal);
}

void Arena::Fill(Node& node) {
  const int64_t wanted = std::ssize(node.ready) + 1;
  if (node.filling || node.full || node.paused ||
      options_.extent * wanted > options_.ready) {
    return;
  }
  node.filling = true;
  node.room_since = false;
  node.thread->Run([this, &node] { MakeOne(node); });
}

void Arena::MakeOne(Node& node) {
  const auto memory =
      driver_->Create(device::Placement::Host(node.numa), options_.extent);
  auto made = memory.ok() ? ExportMemory(*driver_, *memory) : memory.status();
  std::optional<ExportedMemory> surplus;
  {
    const MutexLock lock(mutex_);
    node.filling = false;
    if (!made.ok()) {
      node.full = !node.room_since;
    } else if (node.full) {  // MakeRoom was called while the extent was made
      surplus = *std::move(made);
    } else {
      node.ready.push_back(*std::move(made));
    }
    Fill(node);
  }
  if (surplus) ReleaseMemory(*driver_, *std::move(surplus));
  if (!made.ok() && !absl::IsResourceExhausted(made.status())) {
    WriteLog(
        LogLevel::kWarning,
        fmt::format("no host memory is made ahead on NUMA node {}: {}",
                    node.numa.value(), std::string(made.status().message())));
  }
}

std::optional<ExportedMemory> Arena::Take(PoolId pool, Bytes size) {
  const MutexLock lock(mutex_);
  Node* const node = NodeOf(pool);
  if (node == nullptr || size != options_.extent || node->ready.empty()) {
    return {};
  }
  ExportedMemory taken = std::move(node->ready.back());
  node->ready.pop_back();
  Fill(*node);
  return taken;
}

bool Arena::MakeRoom(PoolId pool) {
  std::vector<ExportedMemory> given_back;
  {
    const MutexLock lock(mutex_);
    Node* const node = NodeOf(pool);
    if (node == nullptr) return false;
    node->full = true;
    node->room_since = false;
    given_back.swap(node->ready);
  }
  for (ExportedMemory& each : given_back) {
    ReleaseMemory(*driver_, std::move(each));
  }
  return !given_back.empty();
}

void Arena::Pause(PoolId pool, bool paused) {
  const MutexLock lock(mutex_);
  Node* const node = NodeOf(pool);
  if (node == nullptr) return;
  node->paused = paused;
  Fill(*node);
}

void Arena::Refill() {
  const MutexLock lock(mutex_);
  for (auto& [numa, node] : nodes_) {
    node.full = false;
    node.room_since = true;
    Fill(node);
  }
}

Bytes Arena::ready(NumaIndex numa) const {
  const MutexLock lock(mutex_);
  const Node* const node = FindOrNull(nodes_, numa.value());
  return options_.extent * (node != nullptr ? std::ssize(node->ready) : 0);
}

}  // namespace sluice::daemon
