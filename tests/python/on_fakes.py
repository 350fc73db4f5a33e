"""Gives this process torch's CUDA device on the fakes (tests/fake_cuda).
Import it before torch, in a process that `fake_node.FakeNode` has started.

The fake libtorch_cuda.so loads torch's own and replaces its kernels. When
torch loads the library, it gets the fake one, which is already loaded.
"""

import ctypes

ctypes.CDLL("libtorch_cuda.so", mode=ctypes.RTLD_GLOBAL)
