"""How long a session with as much stored as there may be waits for a reply when its
daemon is killed, under the booted Debian's systemd; through libsluice as any
rank."""

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
# One GPU, of which a session has a thousand extents, all stored.
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


def measured(service):
    """Milliseconds of as many kills, the shortest first."""
    service.inside.run("systemctl", "stop", "sluiced")  # the store is empty
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
