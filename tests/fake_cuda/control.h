// What a test in the same process asks of the fake driver, beside CUDA's calls.
#pragma once

#include <string>

namespace sluice::fake_cuda {

#define SLUICE_FAKE_CONTROL extern "C" [[gnu::visibility("default")]]

// Changes settings (settings.h).
SLUICE_FAKE_CONTROL void fake_cuda_set(const char* settings);
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

#undef SLUICE_FAKE_CONTROL

}  // namespace sluice::fake_cuda
