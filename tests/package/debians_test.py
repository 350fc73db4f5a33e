#!/usr/bin/env python3
"""The packages and the wheel's programs on other releases of Debian:
debians_test.py BUILD DIST

In a new root of each release apt installs the packages, and `sluicectl plan`
and a daemon with simulated GPUs answer. Debian 11 has an older glibc than the
packages need, so apt must refuse them. The wheel's programs run there, too.
Needs root, mmdebstrap and a mirror.
"""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile

import booted
import rootfs
from installed import PACKED, run

# Release, and whether its glibc is at least 2.35, which the packages need.
RELEASES = (("bullseye", False), ("trixie", True))
WHEEL_PROGRAMS = "sluice/bin"
DESK = ("plan", "train", "--model", "llama-8b", "--hardware", "h100-80g",
        "--gpus", "8", "--seq-len", "1M", "--max-seq-len")


class Root:
    def __init__(self, release, work):
        self.path = f"{work}/{release}"
        rootfs.make(self.path, ["init-system-helpers", "systemd"],
                    work + "/apt.conf", release)
        # Each command runs in its own mount namespace, with /proc.
        self.enter = ("unshare", "--mount", "sh", "-c",
                      'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"',
                      self.path)

    def run(self, *words):
        return run(*self.enter, *words)

    def refuses(self, *words):
        done = subprocess.run([*self.enter, *words], text=True,
                              capture_output=True, check=False)
        assert done.returncode, f"{words} succeeded"
        return done.stdout + done.stderr

    def answers(self, folder=""):
        """Checks that `sluicectl plan` and a daemon of `folder` answer."""
        said = self.run(folder + "sluicectl", *DESK)
        assert "tokens" in said, said
        sockets = tempfile.mkdtemp(dir=self.path + "/tmp")
        inside = sockets.removeprefix(self.path)
        start = [folder + "sluiced", "--driver", "sim", "--runtime-dir", inside]
        self.run(*start, "--check-config")
        daemon = subprocess.Popen([*self.enter, *start])
        try:
            rootfs.wait_until(
                lambda: os.path.exists(sockets + "/session.sock"),
                "the daemon's socket appears")
            said = self.run(folder + "sluicectl", "--socket",
                            inside + "/session.sock", "status")
            assert re.search(r"\bGPU", said, re.I), said
        finally:
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0


def check(release, takes_packages, debs, wheel, work):
    root = Root(release, work)
    with zipfile.ZipFile(wheel) as archive:
        programs = [name for name in archive.namelist()
                    if name.startswith(WHEEL_PROGRAMS)]
        archive.extractall(root.path + "/opt", programs)
    for name in programs:
        os.chmod(f"{root.path}/opt/{name}", 0o755)
    root.answers(f"/opt/{WHEEL_PROGRAMS}/")
    os.mkdir(root.path + "/packages")
    for deb in debs:
        shutil.copy(deb, f"{root.path}/packages/{os.path.basename(deb)}")
    install = ["apt-get", "install", "-y", "--no-install-recommends",
               *(f"/packages/{os.path.basename(deb)}" for deb in debs)]
    if takes_packages:
        root.run(*install)
        root.answers()
    else:
        said = root.refuses(*install)
        assert "libc6 (>= 2." in said, said
    print(f"{release}: passed", flush=True)


def main():
    if booted.skips():
        print("skipped: making a Debian needs root")
        sys.exit(77)
    build, dist = map(os.path.abspath, sys.argv[1:])
    [wheel] = glob.glob(dist + "/*.whl")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(dir=build, prefix="debians-") as work:
        os.chmod(work, 0o755)
        run("cpack", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none", "-B",
            work + "/debs", cwd=PACKED)
        debs = glob.glob(work + "/debs/*.deb")
        for release, takes_packages in RELEASES:
            check(release, takes_packages, debs, wheel, work)


if __name__ == "__main__":
    main()
