// What a host thread has in these libraries.
#pragma once

#include <deque>

#include "absl/base/thread_annotations.h"
#include "proto/base/mutex.h"

namespace sluice::fake_cuda {

// This thread's T, one for each type; made by the first call and never
// destroyed: exit() destroys what is thread_local in the thread that calls it
// before any function of atexit runs, and those make the process's last calls.
// So a thread that ends leaves its own behind.
// Thread safety: safe.
template <typename T>
T& OfThread() {
  struct All {
    Mutex mutex;
    std::deque<T> made ABSL_GUARDED_BY(mutex);  // stay where they are
  };
  thread_local T* const mine = [] {
    static auto* const all = new All;
    const MutexLock lock(all->mutex);
    return &all->made.emplace_back();
  }();
  return *mine;
}

}  // namespace sluice::fake_cuda
