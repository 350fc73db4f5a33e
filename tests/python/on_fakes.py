"""Gives this process torch's CUDA device on the fakes (tests/fake_cuda).
Import it before torch, in a process that `fake_node.FakeNode` has started.

torch's own libtorch_cuda.so is loaded after the fake one, which replaces its
kernels. Later loads of the library find it loaded.
"""

import ctypes

ctypes.CDLL("libtorch_cuda.so", mode=ctypes.RTLD_GLOBAL)
