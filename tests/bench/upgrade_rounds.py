#!/usr/bin/env python3
"""Restarts, upgrades and downgrades the daemon repeatedly under a run of two
ranks: upgrade_rounds.py BUILD

For each action, prints by how much the longest step during it exceeded the
run's median step. For comparison it prints the same for an equally long time in
which nothing was done, or systemd only reloaded its units. Then it kills the
daemon and prints how long a session waits for the next daemon's first reply.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../package"))
import booted
import first_reply
from service import Service
from training_run import Run, is_as_undisturbed

ROUNDS = 5
# An upgrade takes about this time.
UPGRADE_S = 2.5


class Rounds(Service):
    def longest_step_with_the_same(self, run_, way):
        """Does `way` while the same daemon keeps running. Returns by how much
        the longest step exceeds the median, in ms."""
        done = run_.measured_from()
        way()
        time.sleep(UPGRADE_S)
        run_.goes_on()
        return run_.longest_beyond_median(done)

    def nothing(self):
        pass

    def reload_units(self):
        """Reloads systemd's units, as an upgrade that changes the unit does."""
        self.inside.run("systemctl", "daemon-reload")

    def round(self, run_):
        for way in self.nothing, self.reload_units:
            yield way.__name__, self.longest_step_with_the_same(run_, way)
        for way in self.restart, self.upgrade, self.downgrade:
            yield way.__name__, self.longest_step_beside(run_, way)

    def all(self):
        self.inside.wait_for_boot()
        self.install()
        run_ = Run(self.build, self.work, "disturbed")
        run_.goes_on()
        for number in range(1, ROUNDS + 1):
            for way, longest in self.round(run_):
                print(f"{number} of {ROUNDS}, {way}: the longest step is "
                      f"{longest:.0f} ms over the median", flush=True)
        is_as_undisturbed(self.build, self.work, run_)
        first_reply.measured(self)


if __name__ == "__main__":
    booted.main(__file__, Rounds)
