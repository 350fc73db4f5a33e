"""Simulates two machines by namespaces for the network and the host name, with
a virtual cable between them. Needs `unshare`, `nsenter` and `ip`; needs no root
if users may create namespaces."""

import ctypes
import subprocess


class TwoNetworks:
    """The two machines exist until `close`. Their host names are their
    addresses."""

    ADDRESSES = ("10.99.0.1", "10.99.0.2")
    # Takes the cable down. No packet arrives then, and no program is notified.
    CUT = ("ip", "link", "set", "cable", "down")

    def __init__(self):
        self._machines = []
        for address in self.ADDRESSES:
            machine = subprocess.Popen(
                [*self._inside("-U"), "unshare",
                 *([] if self._machines else ["-r"]), "-n", "-u", "sh", "-c",
                 f"hostname {address} && echo made && exec sleep infinity"],
                stdout=subprocess.PIPE, text=True)
            self._machines.append(machine)
            assert machine.stdout.readline() == "made\n", "no namespaces"
        second = self._machines[1].pid
        self._run(0, "ip", "link", "add", "cable", "type", "veth", "peer",
                  "name", "cable", "netns", str(second))
        for end, address in enumerate(self.ADDRESSES):
            self._run(end, "ip", "address", "add", address + "/24", "dev",
                      "cable")
            for link in "lo", "cable":
                self._run(end, "ip", "link", "set", link, "up")

    def enter(self, end):
        """Moves the calling process, which must have only one thread, to
        machine `end` (0 or 1)."""
        libc = ctypes.CDLL(None, use_errno=True)
        for kind in "user", "uts", "net":
            with open(f"/proc/{self._machines[end].pid}/ns/{kind}",
                      encoding="ascii") as namespace:
                if libc.setns(namespace.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), f"setns {kind}")

    def cut(self):
        self._run(1, *self.CUT)

    def close(self):
        for machine in self._machines:
            machine.kill()
            machine.communicate()

    def _inside(self, *namespaces, end=0):
        return [] if not self._machines else [
            "nsenter", "-t", str(self._machines[end].pid),
            "--preserve-credentials", *namespaces]

    def _run(self, end, *command):
        subprocess.run([*self._inside("-U", "-n", end=end), *command],
                       check=True)
