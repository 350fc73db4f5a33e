// Objects that torch keeps to a process's end on purpose: its allocator's
// memory from cudaMalloc, the streams of c10's pool, the only ones made with a
// priority (c10/cuda/CUDAStream.h), and the events of c10d's cache
// (torch/csrc/distributed/c10d/cuda/CUDAEventCache.hpp). NVIDIA's runtime
// destroys them with its contexts.
//
// Here they are destroyed only in a process that asks for it; in all others
// they count as left behind. Streams without a priority, and objects made by
// direct calls of the driver, always count.
//
// Thread safety: thread-safe.
#pragma once

#include "tests/fake_cuda/runtime_calls.h"

// Asks for the destruction. Processes with torch's libtorch_cuda.so call it.
extern "C" [[gnu::visibility("default")]] void fake_cudart_torch_keeps();

namespace sluice::fake_cuda {

void NoteKept(StreamPointer stream);
void NoteKept(EventPointer event);
void ForgetKept(StreamPointer stream);
void ForgetKept(EventPointer event);
// Destroys the kept objects at the end, while their contexts are held.
void DestroyKept();
// Frees all memory from cudaMalloc. No unfinished work may use it.
void FreeKeptMemory();

}  // namespace sluice::fake_cuda
