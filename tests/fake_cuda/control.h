// What a test in the same process asks of the fake driver, beside CUDA's calls.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace sluice::fake_cuda {

#define SLUICE_FAKE_CONTROL extern "C" [[gnu::visibility("default")]]

// Changes settings (settings.h).
SLUICE_FAKE_CONTROL void fake_cuda_set(const char* settings);
// What a setting of numbers is now.
SLUICE_FAKE_CONTROL long fake_cuda_setting(const char* name);
// What was found since the last time, a line each; it no longer counts at the
// process's end.
SLUICE_FAKE_CONTROL void fake_cuda_take_findings(std::string& findings);
// What lives now: "3 streams, 1 events".
SLUICE_FAKE_CONTROL void fake_cuda_alive(std::string& alive);
// How often a function was called, and a rule broken.
SLUICE_FAKE_CONTROL long fake_cuda_calls(const char* function);
SLUICE_FAKE_CONTROL int fake_cuda_broken(int rule);
// Copies of memory that is not pinned, so far: they are not asynchronous.
SLUICE_FAKE_CONTROL long fake_cuda_pageable_copies();
// How much memory was made that network cards can reach.
SLUICE_FAKE_CONTROL long fake_cuda_rdma_memories();
// Lost contexts live again and ordered failures are forgotten: as if the
// process had been started anew.
SLUICE_FAKE_CONTROL void fake_cuda_recover();

// Bytes that an operation of a stream reads or writes: a GPU's memory, or
// pinned.
struct Access {
  const void* address = nullptr;
  size_t size = 0;
  bool writes = false;
};
// Where this process's CPU finds the bytes of each access.
using Views = std::vector<std::byte*>;
// Takes what a stream's operations accessed since the last time, by the
// addresses that they named. Nothing is kept of a stream before it was asked
// for once.
SLUICE_FAKE_CONTROL void fake_cuda_take_accesses(void* stream,
                                                 std::vector<Access>& accesses);
// Host code as one operation of a stream of the current context (null: its own
// stream), for what a GPU would run as a kernel. It runs in the stream's order,
// late, on the stream's thread, and not at all in a lost context; its accesses
// are held to the rules of copies and to the race detector, under the name
// `what`. Returns CUDA's code. `work` must not call the driver; while it waits
// for others it must ask fake_cuda_gone, and end.
SLUICE_FAKE_CONTROL int fake_cuda_run(
    void* stream, const std::string& what, const std::vector<Access>& accesses,
    const std::function<void(const Views&)>& work);
// Whether a GPU, or this process's context on it, is lost.
SLUICE_FAKE_CONTROL bool fake_cuda_gone(int device);
// Takes memory of a GPU as a library does for itself, until it is let go. Null:
// there is not so much.
SLUICE_FAKE_CONTROL void* fake_cuda_hold(int device, size_t size);
SLUICE_FAKE_CONTROL void fake_cuda_let_go(void* held);
// The GPU of the thread's current context; -1: it has none.
SLUICE_FAKE_CONTROL int fake_cuda_current_device();
// The GPU of an ordinal, to which CUDA_VISIBLE_DEVICES may give another; -1:
// there is none.
SLUICE_FAKE_CONTROL int fake_cuda_device_of(int ordinal);
// Whether this process has that GPU's primary context now.
SLUICE_FAKE_CONTROL bool fake_cuda_has_context(int device);
// A finding of another fake library: it counts as the driver's own.
SLUICE_FAKE_CONTROL void fake_cuda_find(const std::string& finding);

#undef SLUICE_FAKE_CONTROL

}  // namespace sluice::fake_cuda
