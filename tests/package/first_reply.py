"""A rank's session, and how long it waits for a reply when its daemon is killed:
for crash_rootfs_test.py, through libsluice as any rank."""

import ctypes
import importlib
import os
import random
import select
import signal
import sys
import time
import types

KILLS = 20
# One GPU, of which a session has a thousand extents, all stored.
CONFIG = """\
[sim]
gpus = 1
gpu_memory = "64GiB"
[pools]
extent_bytes = "64MiB"
[quota]
extents = 1100
"""
LEASED, ASKED = 63 << 30, 64 << 10
PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "../../client/python/sluice")


def native():
    """The Python package's C interface alone: all of it would need torch."""
    package = types.ModuleType("sluice")
    package.__path__ = [PYTHON]
    sys.modules["sluice"] = package
    return importlib.import_module("sluice._native")


class Session:
    """Closed at the end of its `with`."""

    def __init__(self, build):
        self.native = native()
        self.library = self.native.load(build + "/lib/libsluice.so")
        self.moments = random.Random(1)
        self.handle = ctypes.c_void_p()
        self.library.check(self.library.session_open(
            self.native.SessionOptions(job=b"asks"), self.handle))
        self.all_of_it = self.lease(LEASED)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.session_close(self.handle)

    def lease(self, size):
        region = ctypes.c_void_p()
        self.library.check(self.library.region_lease(
            self.handle, self.native.GPU, size, region))
        return region

    def first_reply(self, daemon):
        """Kills it at a random moment; seconds from then to a lease that the
        next one grants."""
        time.sleep(self.moments.uniform(0.1, 0.4))
        process = os.pidfd_open(daemon)
        start = time.monotonic()
        os.kill(daemon, signal.SIGKILL)
        select.select([process], [], [])  # it answers nothing any more
        region = self.lease(ASKED)
        seconds = time.monotonic() - start
        os.close(process)
        self.library.region_free(region)
        return seconds
