"""Runs a check beside a booted Debian that has this build's packages. Tests
call `main`."""

import glob
import os
import shutil
import signal
import sys
import tempfile

import rootfs
from installed import PACKED, run
from rootfs import own_systemd

NEXT_VERSION = "9.9.9"


def in_namespaces(make_check, build, work):
    rootfs.boot(work + "/rootfs")
    check = make_check(build, work)
    own_systemd.check_beside(check.all, check.journal)
    rootfs.become_systemd(work + "/rootfs")


def replace_daemon(deb, program):
    with tempfile.TemporaryDirectory() as tree:
        run("dpkg-deb", "-R", deb, tree)
        shutil.copy(program, tree + "/usr/bin/sluiced")
        run("dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, deb)


def prepare(build, work):
    quick = ["cpack", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none"]
    run(*quick, "-B", work + "/debs", cwd=PACKED)
    run(*quick, "-B", work + "/next", "-D", "CPACK_COMPONENTS_ALL=daemon",
        "-D", "CPACK_PACKAGE_VERSION=" + NEXT_VERSION, cwd=PACKED)
    [deb] = glob.glob(work + "/next/*.deb")
    # A package's programs are all stripped.
    run("strip", "-o", work + "/sluiced-next", build + "/bin/sluiced-next")
    replace_daemon(deb, work + "/sluiced-next")
    debs = glob.glob(work + "/debs/*.deb")
    assert len(debs) == 4, debs
    rootfs.make(work + "/rootfs", rootfs.what_they_need(debs),
                work + "/apt.conf")
    for program in "sluiced-next", "crashing-sluiced":
        rootfs.add_libraries(work + "/rootfs", f"{build}/bin/{program}")


def skips():
    return os.geteuid() != 0 and not os.environ.get("CI")


def main(script, make_check):
    """Runs the check's `all` beside a booted Debian, and exits."""
    if sys.argv[1] == "--inside":
        in_namespaces(make_check, *sys.argv[2:])
    if skips():
        print("skipped: making and booting a Debian needs root")
        sys.exit(77)
    # Exits normally on SIGTERM, so that the booted Debian and its folder are
    # removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    build, made = os.path.abspath(sys.argv[1]), sys.argv[2:]
    # Not in /tmp or /run, because these become the new Debian's.
    with tempfile.TemporaryDirectory(dir=build, prefix="rootfs-") as work:
        os.chmod(work, 0o755)
        if made:
            run("cp", "-a", made[0] + "/.", work)
        else:
            prepare(build, work)
        before = rootfs.cgroups()
        passed = own_systemd.passes(script, "--inside", build, work,
                                    more=["--ipc", "--net"])
        rootfs.remove_cgroups(but=before)
    sys.exit(0 if passed else 1)
