"""Measures how long a session with a thousand stored extents waits for a reply
when its daemon is killed, under the booted Debian's systemd. The session uses
libsluice as ranks do."""

import os
import random
import select
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../support"))
import native_session
from service import NEVER_FROZEN

KILLS = 20
# The session leases a thousand extents of the only GPU. All of them are stored.
CONFIG = NEVER_FROZEN + """\
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
        """Kills the daemon at a random moment; returns the seconds from then
        until the next daemon grants a lease."""
        time.sleep(self.moments.uniform(0.1, 0.4))
        process = os.pidfd_open(daemon)
        start = time.monotonic()
        os.kill(daemon, signal.SIGKILL)
        # Waits until the killed process has ended.
        select.select([process], [], [])
        region = self.lease(ASKED)
        seconds = time.monotonic() - start
        os.close(process)
        self.free(region)
        return seconds


def measured(service):
    """Returns the milliseconds to the reply after each kill, sorted."""
    service.inside.run("systemctl", "stop", "sluiced")  # empties the store
    service.configure(CONFIG)
    service.inside.run("systemctl", "start", "sluiced")
    service.serves()
    with Session(service.build) as session:
        stored = int(service.inside.show("NFileDescriptorStore"))
        assert stored >= 1000, f"only {stored} descriptors were stored"
        milliseconds = sorted(1000 * session.first_reply(service.serves())
                              for _ in range(KILLS))
    print("first reply after a kill: median "
          f"{statistics.median(milliseconds):.1f} ms, latest "
          f"{milliseconds[-1]:.1f} ms of {len(milliseconds)} kills; systemd "
          f"had {stored} descriptors stored", flush=True)
    return milliseconds
