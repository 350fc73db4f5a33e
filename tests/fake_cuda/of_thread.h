// Per-thread data of the fake libraries.
#pragma once

#include <deque>

#include "absl/base/thread_annotations.h"
#include "proto/base/mutex.h"

namespace sluice::fake_cuda {

// Returns this thread's object of type T. The thread's first call makes the
// object, and nothing destroys it, even after the thread's end. thread_local
// does not suffice: exit() destroys thread_local objects before the functions
// of atexit run, and these functions make the process's last calls.
//
// Thread safety: thread-safe.
template <typename T>
T& OfThread() {
  struct All {
    Mutex mutex;
    // Not a vector: addresses of elements stay valid.
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
