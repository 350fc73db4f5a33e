#include "daemon/service/arena.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "daemon/service/log/log.h"
#include "proto/base/numa.h"
#include "proto/base/status.h"

namespace sluice::daemon {
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

void ReleaseMemory(device::Driver& driver, ExportedMemory memory) {
  memory.fd.reset();
  if (memory.memory == device::Memory()) return;
  if (const auto released = driver.Release(memory.memory); !released.ok()) {
    WriteLog(LogLevel::kError, std::string(released.message()));
  }
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
