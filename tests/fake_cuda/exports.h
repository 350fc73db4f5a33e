// The driver's functions, declared from the product's own table. A function
// that the product looks up but that is missing here, or has another type,
// fails to compile or link.
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
