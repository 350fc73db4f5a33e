// Declares the driver functions that the product looks up, from the product's
// own table. A definition with other parameters fails to compile.
#pragma once

#include "kernels/device/cuda/api.h"
#include "tests/fake_cuda/control.h"

// NOLINTBEGIN: the table names types without their namespace.
using namespace sluice::device::cuda;

#define SLUICE_FAKE_EXPORT(name, ...) \
  extern "C" [[gnu::visibility("default")]] Result name(__VA_ARGS__);
SLUICE_CUDA_FUNCTIONS(SLUICE_FAKE_EXPORT)
#undef SLUICE_FAKE_EXPORT
// NOLINTEND
