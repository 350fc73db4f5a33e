// Driver calls that the product does not make, for the fake CUDA runtime
// (cudart), which uses the driver as NVIDIA's runtime does.
#pragma once

#include "tests/fake_cuda/exports.h"

extern "C" {
// Replaces the thread's current context: the one pushed last or, if none is
// pushed, the base context, which need not be popped. Null means no context.
[[gnu::visibility("default")]] Result cuCtxSetCurrent(Context context);
[[gnu::visibility("default")]] Result cuStreamQuery(StreamPointer stream);
// Stores the milliseconds between the recordings of two events with timing.
[[gnu::visibility("default")]] Result cuEventElapsedTime_v2(float* milliseconds,
                                                            EventPointer from,
                                                            EventPointer to);
}
