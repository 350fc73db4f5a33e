#include "client/torch/memory/host_scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "client/torch/memory/region_allocator.h"
#include "proto/base/mutex.h"

namespace sluice::runtime {
namespace {

thread_local const char* innermost = nullptr;

struct HostBlocks {
  Mutex mutex;
  std::unordered_map<void*, Bytes> blocks ABSL_GUARDED_BY(mutex);
  Bytes used ABSL_GUARDED_BY(mutex), peak ABSL_GUARDED_BY(mutex);
  Bytes cap ABSL_GUARDED_BY(mutex) = MiB(16);
};

HostBlocks& OwnHostBlocks() {
  static HostBlocks* blocks = new HostBlocks;  // outlives late frees
  return *blocks;
}

[[noreturn]] void ThrowOverCap(Bytes size, Bytes used, Bytes cap) {
  throw host_memory::OverCap(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      fmt::format("host scope '{}' asked {} with {} in use, above its cap of "
                  "{}: what is large belongs in a leased host region",
                  innermost, FormatBytes(size), FormatBytes(used),
                  FormatBytes(cap)));
}

}  // namespace

namespace host_memory {

bool Active() { return innermost != nullptr; }

void* Allocate(Bytes size) {
  HostBlocks& host = OwnHostBlocks();
  MutexLock lock(host.mutex);
  if (host.cap > Bytes(0) && host.used + size > host.cap) {
    const Bytes used = host.used, cap = host.cap;
    lock.Unlock();
    ThrowOverCap(size, used, cap);
  }
  constexpr Bytes kAlignment{64};  // c10's
  void* block =
      std::aligned_alloc(kAlignment.size(), RoundUp(size, kAlignment).size());
  if (block == nullptr) throw std::bad_alloc();
  host.blocks.emplace(block, size);
  host.used += size;
  host.peak = std::max(host.peak, host.used);
  return block;
}

bool Free(void* block) {
  HostBlocks& host = OwnHostBlocks();
  {
    const MutexLock lock(host.mutex);
    const auto found = host.blocks.find(block);
    if (found == host.blocks.end()) return false;
    host.used -= found->second;
    host.blocks.erase(found);
  }
  std::free(block);
  return true;
}

Usage Current() {
  HostBlocks& host = OwnHostBlocks();
  const MutexLock lock(host.mutex);
  return {host.used, host.peak};
}

void ResetPeak() {
  HostBlocks& host = OwnHostBlocks();
  const MutexLock lock(host.mutex);
  host.peak = host.used;
}

}  // namespace host_memory

HostScope::HostScope(const char* what) : outer_(innermost) { innermost = what; }

HostScope::~HostScope() { innermost = outer_; }

void HostScope::SetCap(Bytes cap) {
  const MutexLock lock(OwnHostBlocks().mutex);
  OwnHostBlocks().cap = cap;
}

}  // namespace sluice::runtime
