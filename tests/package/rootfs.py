"""A separate Debian to install packages into. mmdebstrap makes the Debian, and
the Debian's systemd boots in namespaces and a chroot. /run and /tmp of the
Debian are private to its mount namespace."""

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

# Limit for events that must come eventually, on a busy machine.
PATIENCE_S = 200
DEVICES = ["null", "zero", "full", "random", "urandom", "tty"]


def sources():
    """Returns apt's files that name Debian as a source on this machine. The new
    root lacks the keys of other sources."""
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


def mirror():
    """Returns the address of this machine's mirror of Debian."""
    for path in sources():
        with open(path, encoding="utf-8") as file:
            found = re.search(r"^(?:URIs:|deb(?: \[.*\])?) *(\S+/debian/?)\b",
                              file.read(), re.M)
        if found:
            return found[1]
    raise AssertionError("apt's sources name no mirror of Debian")


def make(root, packages, options, release=None):
    """Makes a Debian of `release`, by default this machine's. Writes an apt
    configuration for this machine's mirrors to the file `options`."""
    asked = run("apt-config", "dump").splitlines()
    with open(options, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in asked
                        if line.startswith("Acquire::")
                        and "IndexTargets" not in line)
    # mmdebstrap runs in separate namespaces, so that its mounts and processes
    # disappear however it ends. Otherwise an interrupted run would leave the
    # machine's /sys mounted below `root`.
    run(*own_systemd.NAMESPACES, "mmdebstrap", "--variant=apt", "--mode=root",
        "--include=" + ",".join(packages), "--aptopt=" + options,
        release or codename(), root, *([mirror()] if release else sources()))


def add_libraries(root, program):
    """Copies into `root` the shared libraries that `program`, of this build,
    needs and `root` lacks. Packaged programs link them statically."""
    for library in re.findall(r"=> (/\S+)", run("ldd", program)):
        if not os.path.exists(root + library):
            os.makedirs(os.path.dirname(root + library), exist_ok=True)
            shutil.copy(library, root + library)


def what_they_need(debs):
    """Returns the names of other packages that these packages depend on."""
    needed, own = set(), set()
    for deb in debs:
        own.add(run("dpkg-deb", "-f", deb, "Package").strip())
        for words in run("dpkg-deb", "-f", deb, "Depends").split(","):
            needed.add(words.split("(")[0].strip())
    return sorted(needed - own - {""})


def mount(*words):
    run("mount", *words)


def boot(root):
    """Mounts what the systemd of `root` needs, in this process's namespaces.
    Mounts the /run of `root` on this process's /run, too."""
    mount("--make-rprivate", "/")
    # Makes `root` a mount, which a unit's sandbox can replace.
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
    # "container" makes systemd leave the machine's devices and kernel alone.
    os.execve("/lib/systemd/systemd",
              ["systemd", "--system", "--unit=multi-user.target",
               "--log-target=journal", "--show-status=no"],
              {"container": "sluice-test", "PATH": "/usr/sbin:/usr/bin"})


def cgroups():
    return {path for path, _, _ in os.walk("/sys/fs/cgroup")}


def remove_cgroups(but):
    """Removes the cgroups that an ended systemd left on the machine, except
    `but` and cgroups with processes."""
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
    """Runs commands in the booted Debian."""

    def __init__(self, root):
        # The test's own TMPDIR does not exist inside.
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
        """Installs a package that was copied to /root before, because copying
        it now would take CPU time from a run."""
        self.run("dpkg", "-i", "/root/" + os.path.basename(deb))

    def wait_for_boot(self):
        wait_until(lambda: self.succeeds("systemctl", "is-active", "-q",
                                         "multi-user.target"),
                   "systemd is up")
