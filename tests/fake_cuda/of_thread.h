// Per-thread data of these libraries.
#pragma once

#include <deque>

#include "absl/base/thread_annotations.h"
#include "proto/base/mutex.h"

namespace sluice::fake_cuda {

// Returns this thread's T, one for each type, made by the first call and never
// destroyed. thread_local does not suffice: exit() destroys it in the calling
// thread before any function of atexit runs, and those make the process's last
// calls. So the T of an ended thread is left.
//
// Thread safety: safe.
template <typename T>
T& OfThread() {
  struct All {
    Mutex mutex;
    // addresses of elements stay valid
    std::deque<T> made ABSL_GUARDED_BY(mutex);
  };
  thread_local T* const mine = [] {
    static auto* const all = new All;
    const MutexLock lock(all->mutex);
    return &all->made.emplace_back();
  }();
  return *mine;
}

}  // namespace sluice::fake_cuda
