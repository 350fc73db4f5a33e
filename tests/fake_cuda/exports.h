// The driver's functions, declared from the product's own table: what it looks
// up is here with that very type, or this does not compile or link.
#pragma once

#include "kernels/device/cuda/api.h"
#include "tests/fake_cuda/control.h"

// NOLINTBEGIN: the table names types as its own namespace does.
using namespace sluice::device::cuda;

#define SLUICE_FAKE_EXPORT(name, ...) \
  extern "C" [[gnu::visibility("default")]] Result name(__VA_ARGS__);
SLUICE_CUDA_FUNCTIONS(SLUICE_FAKE_EXPORT)
#undef SLUICE_FAKE_EXPORT
// NOLINTEND
