"""Counts the bytes in use of torch's CPU allocator, as
`torch.cuda.memory_allocated` does for a GPU. See counting.cc."""

import ctypes
import os
import subprocess
import tempfile

import torch

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "counting.cc")


class Counter:
    """Counts from its creation until the process ends. Create at most one."""

    def __init__(self):
        torch_folder = os.path.dirname(torch.__file__)
        libraries = os.path.join(torch_folder, "lib")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "libcounting.so")
            subprocess.run(
                [os.environ.get("CXX", "c++"), "-std=c++17", "-O2", "-shared",
                 "-fPIC", "-isystem", os.path.join(torch_folder, "include"),
                 SOURCE, "-o", path, "-L" + libraries, "-lc10"], check=True)
            self._library = ctypes.CDLL(path)
        for name in ("UsedBytes", "PeakBytes"):
            getattr(self._library, name).restype = ctypes.c_int64
        self._library.CountFromNow()

    @property
    def used_bytes(self):
        return self._library.UsedBytes()

    @property
    def peak_bytes(self):
        """Returns the most bytes in use since `reset_peak`."""
        return self._library.PeakBytes()

    def reset_peak(self):
        self._library.ResetPeak()
