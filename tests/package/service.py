"""The installed service in the booted Debian, and the ways to disturb it
during a run."""

import filecmp
import glob
import json
import os
import signal

import booted
import rootfs
from installed import run
from rootfs import wait_until

CONFIG = "/etc/sluice/sluiced.toml"
# However often the daemon is killed, it does not freeze.
NEVER_FROZEN = "[restart]\nfreeze_after = 0\n"


class Service:
    def __init__(self, build, work):
        self.build, self.work = build, work
        self.inside = rootfs.Inside(work + "/rootfs")
        [deb] = glob.glob(work + "/debs/sluice-daemon_*.deb")
        self.version = run("dpkg-deb", "-f", deb, "Version").strip()
        self.installed = self.version
        self.shipped = None

    def serves(self):
        """Waits until the daemon serves with its whole configuration; returns
        its pid."""
        def there():
            return (self.inside.show("ActiveState") == "active"
                    and self.inside.show("StatusText") == "serving"
                    and int(self.inside.show("MainPID")))
        return wait_until(there, "sluiced serves")

    def install(self):
        """Installs all packages but the -dev ones; returns the daemon's pid.
        """
        debs = sorted(glob.glob(self.work + "/debs/*.deb"))
        for deb in debs + glob.glob(self.work + "/next/*.deb"):
            self.inside.put(deb, "/root")
        for deb in debs:
            if "-dev" not in deb:
                self.inside.install(deb)
        with open(self.inside.root + CONFIG, encoding="ascii") as file:
            self.shipped = file.read()
        return self.serves()

    def configure(self, more):
        """Writes the next daemon's configuration: shipped plus `more`."""
        with open(self.inside.root + CONFIG, "w", encoding="ascii") as file:
            file.write(self.shipped + more)

    def longest_step_beside(self, run_, way):
        """Calls `way` with the daemon's pid during a run, waits until another
        process serves and the run has continued, and returns by how many ms
        the longest step exceeds the median."""
        before = self.serves()
        done = run_.measured_from()
        way(before)
        run_.goes_on()
        wait_until(lambda: self.serves() != before, way.__name__)
        self.is_what_is_installed()
        return run_.longest_beyond_median(done)

    def restart(self, _):
        self.inside.run("systemctl", "restart", "sluiced")

    def reload(self, _):
        self.inside.run("systemctl", "reload", "sluiced")

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)

    def stand_still(self, pid):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"),
                   "the watchdog ends sluiced")
        wait_until(lambda: "Watchdog timeout" in self.inside.run(
            "journalctl", "--no-pager", "-u", "sluiced"),
                   "the journal has the watchdog's line")

    def misconfigure(self, pid):
        """Makes the configuration invalid, so that restarts fail until the
        service freezes; then repairs it."""
        self.configure("[nonsense]\n")
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: self.inside.show("StatusText").startswith("frozen: "),
            "sluiced is frozen")
        assert "nonsense" in self.inside.show("StatusText")
        self.configure("")
        self.inside.run("systemctl", "restart", "sluiced")

    def upgrade(self, _):
        self.becomes(self.work + "/next/*.deb", booted.NEXT_VERSION)

    def downgrade(self, _):
        self.becomes(self.work + "/debs/sluice-daemon_*.deb", self.version)

    def becomes(self, pattern, version):
        [deb] = glob.glob(pattern)
        self.inside.install(deb)
        self.installed = version

    def is_what_is_installed(self):
        """Checks the version of the installed package, and its program."""
        exe = os.readlink(f"/proc/{self.serves()}/exe")
        assert "deleted" not in exe, exe
        version = self.inside.run("dpkg-query", "-W", "-f", "${Version}",
                                  "sluice-daemon")
        assert version == self.installed, version
        assert (self.installed == booted.NEXT_VERSION) == filecmp.cmp(
            self.inside.root + "/usr/bin/sluiced", self.work + "/sluiced-next",
            shallow=False)

    def pools(self):
        status = json.loads(self.inside.run("sluicectl", "--admin", "status",
                                            "--json"))
        return status["gpus"] + status["host"]

    def leased(self):
        return sum(pool["leased_bytes"] for pool in self.pools())

    def journal(self):
        print(self.inside.run("journalctl", "--no-pager", "-n", "60",
                              "-u", "sluiced"))
        print(self.inside.run("systemctl", "--no-pager", "status", "sluiced"))
