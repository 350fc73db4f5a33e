#include "tests/fake_cuda/control.h"

#include <filesystem>
#include <utility>

#include "tests/fake_cuda/world.h"

namespace sluice::fake_cuda {

void fake_cuda_set(const char* settings) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  world.settings.Apply(settings);
}

long fake_cuda_setting(const char* name) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  return world.settings.Get(name);
}

void fake_cuda_take_findings(std::string& findings) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  findings.clear();
  for (const std::string& finding : world.findings) findings += finding + "\n";
  world.findings.clear();
  if (world.process != 0) {
    std::error_code ignored;
    std::filesystem::remove(world.store.folder() + "/findings", ignored);
  }
}

void fake_cuda_alive(std::string& alive) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  alive = world.Alive();
}

void* fake_cuda_hold(int device, size_t size) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  AllocationPointer held = world.Hold(device, size);
  if (held == nullptr) return nullptr;
  return new AllocationPointer(std::move(held));
}

void fake_cuda_let_go(void* held) {
  delete static_cast<AllocationPointer*>(held);
}

long fake_cuda_calls(const char* function) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  return world.calls[function];
}

int fake_cuda_broken(int rule) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  return world.broken.at(static_cast<size_t>(rule));
}

void fake_cuda_take_accesses(void* stream, std::vector<Access>& accesses) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  accesses.clear();
  const auto it = world.streams.find(static_cast<StreamPointer>(stream));
  if (it == world.streams.end()) return;
  accesses.swap(world.accesses[it->second->timeline.stream]);
}

long fake_cuda_pageable_copies() {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  return world.pageable_copies;
}

long fake_cuda_rdma_memories() {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  return world.rdma_memories;
}

void fake_cuda_recover() {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  world.settings.failures.clear();
  world.settings.lose = -1;
  for (auto& [device, context] : world.contexts) context.lost = kSuccess;
}

}  // namespace sluice::fake_cuda
