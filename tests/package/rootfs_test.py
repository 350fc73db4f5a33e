#!/usr/bin/env python3
"""The packages on a separate Debian with its own systemd: rootfs_test.py BUILD
[MADE]

A training run keeps bit-identical losses while the daemon is restarted, killed,
stopped until the watchdog ends it, misconfigured, upgraded to a daemon of the
next version (tests/golden/next), and downgraded again. Needs root and
mmdebstrap, which `./dev setup test` installs. The test is skipped only for a
plain user outside of CI. MADE is the output of make_rootfs.py for BUILD.
Without MADE the test makes these files itself.
"""

import json
import os
import re

import booted
from rootfs import wait_until
from service import CONFIG, Service
from training_run import Run, is_as_undisturbed

SOCKET = "/run/sluice/session.sock"
# Limits in ms by which a step may exceed the median during an action, on a
# busy machine. `./dev bench upgrade` has strict limits.
LONGEST_MS = {"upgrade": 5000, "downgrade": 5000}
# A shorter watchdog time than the shipped unit's 10 s.
WATCHDOG = "[Service]\nWatchdogSec=4s\n"


class Check(Service):
    def runs_as_its_user(self, pid):
        assert self.inside.succeeds("systemctl", "is-enabled", "sluiced")
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            status = dict(line.rstrip("\n").split(":\t") for line in file
                          if ":\t" in line)
        uid = int(self.inside.run("id", "-u", "sluice"))
        assert uid != 0 and status["Uid"].split() == [str(uid)] * 4, status
        assert int(status["CapEff"], 16) == 1 << 19, status["CapEff"]
        assert "gpu" in self.inside.run(
            "sluicectl", "--admin", "status").lower()

    def looked_at(self):
        """The doctor finds no problem, and a support bundle leaves out nothing.
        """
        answer = json.loads(self.inside.run("sluicectl", "doctor", "--json"))
        found = {f["what"]: f for f in answer["findings"]}
        unwell = [f for f in found.values() if f["health"] != "ok"]
        assert not unwell, unwell
        assert "systemd keeps" in found["store"]["said"], found["store"]
        assert "sluice:sluice" in found["admin socket"]["said"], found
        self.inside.run("sluicectl", "drain", "--reason", "a look")
        self.inside.run("sluicectl", "undrain")
        self.inside.run("journalctl", "--sync")
        bundle = json.loads(self.inside.run(
            "sluicectl", "support-bundle", "--json", "--out", "/tmp/b.gz"))
        assert not bundle["left_out"], bundle["left_out"]
        journal = self.inside.run("tar", "-xzOf", "/tmp/b.gz", "--wildcards",
                                  "*/journal.txt")
        assert "drain: the node is drained by root" in journal, journal

    def disturb(self, run_):
        """Each of these actions replaces the daemon, and the run does not
        notice."""
        folder = self.inside.root + "/run/systemd/system/sluiced.service.d"
        os.makedirs(folder)
        with open(folder + "/watchdog.conf", "w", encoding="ascii") as file:
            file.write(WATCHDOG)
        self.inside.run("systemctl", "daemon-reload")
        for way in (self.restart, self.reload, self.kill, self.kill,
                    self.stand_still, self.misconfigure, self.upgrade,
                    self.downgrade):
            stored = int(self.inside.show("NFileDescriptorStore"))
            assert stored > 10, f"{stored} descriptors are stored"
            longest = self.longest_step_beside(run_, way)
            print(f"{way.__name__}: the run goes on; its longest step is "
                  f"{longest:.0f} ms over the median "
                  f"({stored} descriptors were stored)", flush=True)
            assert longest <= LONGEST_MS.get(way.__name__, longest), longest

    def attached(self, job):
        """The journal has one entry per rank, with the request's id."""
        lines = self.inside.run(
            "journalctl", "--no-pager", "-u", "sluiced", "-o", "json",
            "SLUICE_EVENT=attach").splitlines()
        entries = [e for e in map(json.loads, lines)
                   if f"of job {job}," in e["MESSAGE"]]
        assert len(entries) == 2, lines
        requests = {entry["SLUICE_REQUEST"] for entry in entries}
        assert len(requests) == 2, requests
        for entry in entries:
            assert re.fullmatch(r"s\d+\.r\d+", entry["SLUICE_REQUEST"]), entry
            assert entry["PRIORITY"] == "6", entry
            assert entry["SLUICE_UID"] == str(os.getuid()), entry
        [request] = list(requests)[:1]
        found = self.inside.run("journalctl", "--no-pager", "-u", "sluiced",
                                "-o", "cat", "SLUICE_REQUEST=" + request)
        assert found.startswith("attach: rank "), found

    def stop(self):
        """A rank is notified, and computes on with its leased memory."""
        run_ = Run(self.build, self.work, "stopped")
        run_.goes_on()
        self.inside.run("systemctl", "stop", "sluiced")
        run_.goes_on()
        with open(run_.err, encoding="utf-8") as file:
            said = file.read()
        assert "sluiced was stopped on this node" in said, said
        run_.end()

    def start_by_the_socket(self):
        """systemd owns the socket, so a rank may connect before there is a
        daemon."""
        assert not self.inside.succeeds("systemctl", "is-enabled", "-q",
                                        "sluiced.socket")
        self.inside.run("systemctl", "enable", "--now", "sluiced.socket")
        assert not self.inside.succeeds("systemctl", "is-active", "-q",
                                        "sluiced")
        first = Run(self.build, self.work, "first")
        first.goes_on()
        before = self.serves()
        self.kill(before)
        wait_until(lambda: self.serves() != before, "another daemon serves")
        first.goes_on()
        first.end()
        self.inside.run("systemctl", "stop", "sluiced.socket", "sluiced")
        assert not os.path.exists(SOCKET)
        self.inside.run("systemctl", "disable", "sluiced.socket")
        self.inside.run("systemctl", "start", "sluiced")

    def remove(self):
        pid = self.serves()
        self.inside.run("dpkg", "--purge", "sluice-daemon")
        assert not os.path.exists(f"/proc/{pid}")
        for path in "/var/lib/sluice", CONFIG, "/usr/bin/sluiced":
            assert not os.path.exists(self.inside.root + path), path

    def all(self):
        self.inside.wait_for_boot()
        self.runs_as_its_user(self.install())
        self.looked_at()
        disturbed = Run(self.build, self.work, "disturbed")
        disturbed.goes_on()
        self.attached("disturbed")
        self.disturb(disturbed)
        is_as_undisturbed(self.build, self.work, disturbed)
        wait_until(lambda: self.leased() == 0, "all memory is back")
        self.stop()
        self.start_by_the_socket()
        self.remove()


if __name__ == "__main__":
    booted.main(__file__, Check)
