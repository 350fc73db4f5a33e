"""A Debian of its own to install into: mmdebstrap makes it, and its systemd is
booted by namespaces and chroot. Everything that it writes outside of its folder
is private to its mount namespace, /run and /tmp first of all."""

import glob
import os
import re
import shutil
import subprocess
import sys
import time

from installed import run

sys.path.insert(0, os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "../support"))
import own_systemd

# For what must come at last, on a machine that is busy with others.
PATIENCE_S = 200
DEVICES = ["null", "zero", "full", "random", "urandom", "tty"]


def sources():
    """This machine's sources of Debian; the new root lacks the keys of third
    parties."""
    found = []
    for path in glob.glob("/etc/apt/sources.list.d/*.sources") + [
            "/etc/apt/sources.list"]:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if re.search(r"^(URIs:|deb ).*debian", file.read(), re.M):
                    found.append(path)
    return found


def codename():
    with open("/etc/os-release", encoding="utf-8") as file:
        return re.search(r"^VERSION_CODENAME=(\w+)$", file.read(), re.M)[1]


def make(root, packages, options):
    """`options`: a file for this machine's ways of reaching its mirrors."""
    asked = run("apt-config", "dump").splitlines()
    with open(options, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in asked
                        if line.startswith("Acquire::")
                        and "IndexTargets" not in line)
    # In namespaces of its own, with which its mounts and processes go however it
    # ends: once a run that was ended here left the machine's /sys below `root`.
    run(*own_systemd.NAMESPACES, "mmdebstrap", "--variant=apt", "--mode=root",
        "--include=" + ",".join(packages), "--aptopt=" + options,
        codename(), root, *sources())


def what_they_need(debs):
    """Names of the packages of others that these depend on."""
    needed, own = set(), set()
    for deb in debs:
        own.add(run("dpkg-deb", "-f", deb, "Package").strip())
        for words in run("dpkg-deb", "-f", deb, "Depends").split(","):
            needed.add(words.split("(")[0].strip())
    return sorted(needed - own - {""})


def mount(*words):
    run("mount", *words)


def boot(root):
    """In namespaces of its own: becomes the systemd of `root`. What was started
    before stays outside of `root`, and has its /run."""
    mount("--make-rprivate", "/")
    # A root of mounts of its own, which a unit's sandbox can take the place of.
    mount("--bind", root, root)
    for folder in "run", "tmp", "dev":
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/{folder}")
    os.chmod(root + "/tmp", 0o1777)
    mount("--bind", root + "/run", "/run")
    mount("-t", "proc", "proc", root + "/proc")
    mount("--rbind", "/sys", root + "/sys")
    for name in DEVICES:
        with open(f"{root}/dev/{name}", "wb"):
            mount("--bind", f"/dev/{name}", f"{root}/dev/{name}")
    for name in "shm", "pts":
        os.mkdir(f"{root}/dev/{name}")
    mount("-t", "tmpfs", "tmpfs", root + "/dev/shm")
    mount("-t", "devpts", "-o", "newinstance", "devpts", root + "/dev/pts")


def become_systemd(root):
    os.chroot(root)
    os.chdir("/")
    # "container": it leaves the machine's devices and kernel alone.
    os.execve("/lib/systemd/systemd",
              ["systemd", "--system", "--unit=multi-user.target",
               "--log-target=journal", "--show-status=no"],
              {"container": "sluice-test", "PATH": "/usr/sbin:/usr/bin"})


def cgroups():
    return {path for path, _, _ in os.walk("/sys/fs/cgroup")}


def remove_cgroups(but):
    """Those that an ended systemd left, which are the machine's; one with
    processes cannot be removed."""
    for path in sorted(cgroups() - but, reverse=True):
        try:
            os.rmdir(path)
        except OSError:
            pass


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.05)
    return value


class Inside:
    """Commands in the booted Debian."""

    def __init__(self, root):
        # The test's own TMPDIR is not inside.
        self.root, self.enter = root, ("env", "-u", "TMPDIR", "chroot", root)

    def run(self, *words):
        return run(*self.enter, *words)

    def succeeds(self, *words):
        return subprocess.run([*self.enter, *words], check=False,
                              stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0

    def show(self, name):
        return self.run("systemctl", "show", "--value", "-p", name,
                        "sluiced.service").strip()

    def put(self, path, where):
        shutil.copy(path, self.root + where)

    def install(self, deb):
        """One that was put into /root: the copy would take a core from a run."""
        self.run("dpkg", "-i", "/root/" + os.path.basename(deb))

    def wait_for_boot(self):
        wait_until(lambda: self.succeeds("systemctl", "is-active", "-q",
                                         "multi-user.target"),
                   "its systemd is up")
