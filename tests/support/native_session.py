"""A session of libsluice through the C interface of the Python package only,
because the whole package would need torch."""

import ctypes
import importlib
import os
import sys
import types

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "../../client/python/sluice")


def interface():
    package = types.ModuleType("sluice")
    package.__path__ = [PYTHON]
    sys.modules["sluice"] = package
    return importlib.import_module("sluice.native.abi")


class Session:
    """The session of a rank on a GPU; it is closed at the end of its `with`.
    """

    def __init__(self, library, job, socket=None):
        """`library` is the path of libsluice.so. `socket` is a path, or None
        for the node's daemon."""
        self.native = interface()
        self.library = self.native.load(library)
        self.handle = ctypes.c_void_p()
        self.library.check(self.library.session_open(
            self.native.SessionOptions(
                job=job.encode(), socket=socket and socket.encode()),
            self.handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.session_close(self.handle)

    def lease(self, size):
        region = ctypes.c_void_p()
        self.library.check(self.library.region_lease_within(
            self.handle, self.native.GPU, size, 0, region))
        return region

    def free(self, region):
        self.library.region_free(region)
