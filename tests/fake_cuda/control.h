// Functions by which a test in the same process controls the fake driver, in
// addition to CUDA's calls.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace sluice::fake_cuda {

#define SLUICE_FAKE_CONTROL extern "C" [[gnu::visibility("default")]]

// Changes settings (settings.h).
SLUICE_FAKE_CONTROL void fake_cuda_set(const char* settings);
// Returns the current value of a numeric setting.
SLUICE_FAKE_CONTROL long fake_cuda_setting(const char* name);
// Moves this process's findings into `findings`, one per line, so that they do
// not count at the process's end.
SLUICE_FAKE_CONTROL void fake_cuda_take_findings(std::string& findings);
// Lists the live objects, as in "3 streams, 1 events", or "" if there are none.
SLUICE_FAKE_CONTROL void fake_cuda_alive(std::string& alive);
SLUICE_FAKE_CONTROL long fake_cuda_calls(const char* function);
// Returns how often a rule (enum Rule) was broken.
SLUICE_FAKE_CONTROL int fake_cuda_broken(int rule);
// Returns the number of copies from or to pageable memory, which are not
// asynchronous.
SLUICE_FAKE_CONTROL long fake_cuda_pageable_copies();
// Returns the number of allocations that network cards can reach.
SLUICE_FAKE_CONTROL long fake_cuda_rdma_memories();
// Revives lost contexts and the GPU of the setting `lose`, and clears the
// failures of the setting `fail`.
SLUICE_FAKE_CONTROL void fake_cuda_recover();

// Bytes that an operation of a stream reads or writes: a GPU's memory, or
// pinned memory.
struct Access {
  const void* address = nullptr;
  size_t size = 0;
  bool writes = false;
};
// The addresses at which this process's CPU reaches the bytes of each access.
using Views = std::vector<std::byte*>;
// Moves the recorded accesses of the operations of `stream` into `accesses`, by
// the addresses that the operations named. Recording starts with the first call
// for that stream.
SLUICE_FAKE_CONTROL void fake_cuda_take_accesses(void* stream,
                                                 std::vector<Access>& accesses);
// Runs host code as one operation of a stream of the current context (null: the
// context's own stream), in place of a kernel. It runs on the stream's thread,
// in the stream's order, with a delay, and not at all in a lost context. The
// rules of copies and the race detector apply to its accesses, under the name
// `what`. Returns CUDA's code. `work` must not call the driver; while it waits
// for other operations it must poll fake_cuda_gone, and end once that is true.
SLUICE_FAKE_CONTROL int fake_cuda_run(
    void* stream, const std::string& what, const std::vector<Access>& accesses,
    const std::function<void(const Views&)>& work);
// Returns whether a GPU, or this process's context on it, is lost.
SLUICE_FAKE_CONTROL bool fake_cuda_gone(int device);
// Takes `size` bytes of a GPU's memory, as a library does for its own buffers.
// Returns null if the GPU has less free memory.
SLUICE_FAKE_CONTROL void* fake_cuda_hold(int device, size_t size);
// Releases memory that fake_cuda_hold took.
SLUICE_FAKE_CONTROL void fake_cuda_let_go(void* held);
// Returns the GPU of the thread's current context, or -1 without a context.
SLUICE_FAKE_CONTROL int fake_cuda_current_device();
// Returns the GPU that has this ordinal in this process (CUDA_VISIBLE_DEVICES),
// or -1 if no GPU has it.
SLUICE_FAKE_CONTROL int fake_cuda_device_of(int ordinal);
// Returns whether this process holds that GPU's primary context.
SLUICE_FAKE_CONTROL bool fake_cuda_has_context(int device);
// Adds a finding of another fake library, which counts as the driver's own.
SLUICE_FAKE_CONTROL void fake_cuda_find(const std::string& finding);

#undef SLUICE_FAKE_CONTROL

}  // namespace sluice::fake_cuda
