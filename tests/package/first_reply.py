"""A rank's session, and how long it waits for a reply when its daemon is killed:
for crash_rootfs_test.py, through libsluice as any rank."""

import os
import random
import select
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../support"))
import native_session  # pylint: disable=wrong-import-position

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


class Session(native_session.Session):
    def __init__(self, build):
        super().__init__(build + "/lib/libsluice.so", "asks")
        self.moments = random.Random(1)
        self.all_of_it = self.lease(LEASED)

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
        self.free(region)
        return seconds
