// What torch keeps to a process's end on purpose: the memory that its allocator
// has of cudaMalloc, the streams of c10's pool, the only ones that are made
// with a priority (c10/cuda/CUDAStream.h), and the events of c10d's cache
// (torch/csrc/distributed/c10d/cuda/CUDAEventCache.hpp). NVIDIA's runtime
// destroys them with its contexts.
//
// Only a process that says so has them destroyed; in all others they count as
// left behind. Streams without a priority, and what was made of the driver
// itself, always do.
// Thread safety: safe.
#pragma once

#include "tests/fake_cuda/runtime_calls.h"

// From now on this process does: for processes with torch's libtorch_cuda.so.
extern "C" [[gnu::visibility("default")]] void fake_cudart_torch_keeps();

namespace sluice::fake_cuda {

void NoteKept(StreamPointer stream);
void NoteKept(EventPointer event);
void ForgetKept(StreamPointer stream);
void ForgetKept(EventPointer event);
// At the end, while their contexts are held.
void DestroyKept();
// What memory_calls.cc made; no work that uses it may be left.
void FreeKeptMemory();

}  // namespace sluice::fake_cuda
