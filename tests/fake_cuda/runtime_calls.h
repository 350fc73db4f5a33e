// Driver calls that the product does not make, for the fake CUDA runtime
// (cudart), which is made of the driver as NVIDIA's is.
#pragma once

#include "tests/fake_cuda/exports.h"

extern "C" {
// Replaces the thread's current context; null: it has none. It lies below
// those that are pushed, and stays the thread's: it need not be popped.
[[gnu::visibility("default")]] Result cuCtxSetCurrent(Context context);
[[gnu::visibility("default")]] Result cuStreamQuery(StreamPointer stream);
// Milliseconds between two recordings of events that were made with timing.
[[gnu::visibility("default")]] Result cuEventElapsedTime_v2(float* milliseconds,
                                                            EventPointer from,
                                                            EventPointer to);
}
