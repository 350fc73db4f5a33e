#!/usr/bin/env python3
"""The packages on a Debian of their own, under a systemd of its own:
rootfs_test.py BUILD [MADE]

A training run goes on, bit by bit, while the daemon is restarted, killed, stood
still until the watchdog ends it, misconfigured, upgraded to a daemon of
the next version (tests/golden/next), and downgraded again. Needs root and
mmdebstrap, which `./dev setup test` installs; only a plain user may skip it,
and not in CI. MADE is what make_rootfs.py has made of BUILD; without it the test
makes that itself.
"""

import filecmp
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import rootfs
from installed import run
from rootfs import wait_until

TRAIN = ("--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --chunk 64 "
         "--ranks 2 --seq-len 777 --steps 100000 --seed 3 --hbm 24MiB").split()
CONFIG = "/etc/sluice/sluiced.toml"
SOCKET = "/run/sluice/session.sock"
NEXT_VERSION = "9.9.9"
# How much longer than the median a step may take in which that is done: ten
# times the target of `./dev bench upgrade`, whatever else the machine does.
LONGEST_MS = {"upgrade": 1000, "downgrade": 1000}
# The shipped unit's 10 s, shorter.
WATCHDOG = "[Service]\nWatchdogSec=1s\n"


def steps_in(log):
    """The lines of a run's log that have a loss; whole ones."""
    if not os.path.exists(log):
        return []
    with open(log, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return [line for line in lines if "loss" in line]


class Run:
    """A sluice-train of two ranks, outside of the Debian but with its /run."""

    def __init__(self, build, folder, name):
        self.log = f"{folder}/{name}.jsonl"
        text = folder + "/text"
        with open(text, "w", encoding="ascii") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 2000)
        with open(f"{folder}/{name}.err", "w", encoding="utf-8") as err:
            # Where there are no more cores than ranks, what dpkg computes would
            # be taken from them; a node has others for it.
            self.process = subprocess.Popen(
                ["nice", "-n", "-10", build + "/bin/sluice-train", "train",
                 *TRAIN, "--job", name,
                 "--data", text, "--log-jsonl", self.log],
                stdout=subprocess.DEVNULL, stderr=err)
        self.err = err.name

    def steps(self):
        return steps_in(self.log)

    def losses(self):
        return [step["loss"] for step in self.steps()]

    def longest_beyond_median(self, since):
        """Of its steps from number `since` on, in ms."""
        seconds = [step["seconds"] for step in self.steps()]
        return 1000 * (max(seconds[since:]) - statistics.median(seconds))

    def goes_on(self, steps=3):
        """It ends so many more steps."""
        wanted = len(self.losses()) + steps

        def there():
            if self.process.poll() is not None:
                with open(self.err, encoding="utf-8") as file:
                    raise AssertionError("the run ended:\n" + file.read())
            return len(self.losses()) >= wanted
        wait_until(there, 90, f"{steps} more steps of the run")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


class Check:
    def __init__(self, build, work):
        self.build, self.work = build, work
        self.inside = rootfs.Inside(work + "/rootfs")
        [deb] = glob.glob(work + "/debs/sluice-daemon_*.deb")
        self.version = run("dpkg-deb", "-f", deb, "Version").strip()
        self.installed = self.version

    def serves(self):
        """With all that it is told; its pid."""
        def there():
            return (self.inside.show("ActiveState") == "active"
                    and self.inside.show("StatusText") == "serving"
                    and int(self.inside.show("MainPID")))
        return wait_until(there, 60, "sluiced serves")

    def install(self):
        for deb in sorted(glob.glob(self.work + "/debs/*.deb")):
            if "-dev" not in deb:
                self.inside.install(deb)
        pid = self.serves()
        assert self.inside.succeeds("systemctl", "is-enabled", "sluiced")
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            status = dict(line.rstrip("\n").split(":\t") for line in file
                          if ":\t" in line)
        uid = int(self.inside.run("id", "-u", "sluice"))
        assert uid != 0 and status["Uid"].split() == [str(uid)] * 4, status
        assert int(status["CapEff"], 16) == 1 << 19, status["CapEff"]
        assert "gpu" in self.inside.run("sluicectl", "--admin", "status").lower()

    def looked_at(self):
        """The doctor has nothing to complain of, and a bundle everything."""
        answer = json.loads(self.inside.run("sluicectl", "doctor", "--json"))
        found = {f["what"]: f for f in answer["findings"]}
        unwell = [f for f in found.values() if f["health"] != "ok"]
        assert not unwell, unwell
        assert "systemd keeps" in found["store"]["said"], found["store"]
        assert "sluice:sluice" in found["admin socket"]["said"], found
        self.inside.run("sluicectl", "drain", "--reason", "a look")
        self.inside.run("sluicectl", "undrain")
        bundle = json.loads(self.inside.run(
            "sluicectl", "support-bundle", "--json", "--out", "/tmp/b.gz"))
        assert not bundle["left_out"], bundle["left_out"]
        journal = self.inside.run("tar", "-xzOf", "/tmp/b.gz", "--wildcards",
                                  "*/journal.txt")
        assert "drain: the node is drained by root" in journal, journal

    def disturb(self, run_):
        """Each ends one daemon, and the run does not notice."""
        folder = self.inside.root + "/run/systemd/system/sluiced.service.d"
        os.makedirs(folder)
        with open(folder + "/watchdog.conf", "w", encoding="ascii") as file:
            file.write(WATCHDOG)
        self.inside.run("systemctl", "daemon-reload")
        for way in (self.restart, self.reload, self.kill, self.kill, self.stand_still,
                    self.misconfigure, self.upgrade, self.downgrade):
            before = self.serves()
            stored = int(self.inside.show("NFileDescriptorStore"))
            assert stored > 10, f"{stored} descriptors are stored"
            # What looks at systemd takes a core from a rank: not in the steps
            # that are measured.
            run_.goes_on(1)
            done = len(run_.steps())
            way(before)
            run_.goes_on()
            wait_until(lambda old=before: self.serves() != old, 60,
                       way.__name__)
            self.is_what_is_installed()
            longest = run_.longest_beyond_median(done)
            print(f"{way.__name__}: the run goes on; its longest step is "
                  f"{longest:.0f} ms over the median "
                  f"({stored} descriptors were stored)", flush=True)
            assert longest <= LONGEST_MS.get(way.__name__, longest), longest

    def install_another(self, run_):
        """What dpkg itself takes from a run whose threads have all cores."""
        run_.goes_on(1)
        done = len(run_.steps())
        [deb] = glob.glob(self.work + "/debs/sluicectl_*.deb")
        self.inside.install(deb)
        run_.goes_on()
        print("sluicectl installed again: the longest step is "
              f"{run_.longest_beyond_median(done):.0f} ms over the median",
              flush=True)

    def restart(self, _):
        self.inside.run("systemctl", "restart", "sluiced")

    def reload(self, _):
        self.inside.run("systemctl", "reload", "sluiced")

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)

    def stand_still(self, pid):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 30,
                   "the watchdog ends it")
        assert "Watchdog timeout" in self.inside.run(
            "journalctl", "--no-pager", "-u", "sluiced")

    def misconfigure(self, pid):
        """Its configuration is refused, so often that it freezes."""
        config = self.inside.root + CONFIG
        shutil.copy(config, config + ".good")
        with open(config, "a", encoding="ascii") as file:
            file.write("[nonsense]\n")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.inside.show("StatusText").startswith("frozen: "),
                   30, "it is frozen")
        assert "nonsense" in self.inside.show("StatusText")
        os.replace(config + ".good", config)
        self.inside.run("systemctl", "restart", "sluiced")

    def upgrade(self, _):
        self.becomes(self.work + "/next/*.deb", NEXT_VERSION)

    def downgrade(self, _):
        self.becomes(self.work + "/debs/sluice-daemon_*.deb", self.version)

    def becomes(self, pattern, version):
        [deb] = glob.glob(pattern)
        self.inside.install(deb)
        self.installed = version

    def is_what_is_installed(self):
        """Also what runs."""
        exe = os.readlink(f"/proc/{self.serves()}/exe")
        assert "deleted" not in exe, exe
        version = self.inside.run("dpkg-query", "-W", "-f", "${Version}",
                                  "sluice-daemon")
        assert version == self.installed, version
        assert (self.installed == NEXT_VERSION) == filecmp.cmp(
            self.inside.root + "/usr/bin/sluiced", self.work + "/sluiced-next",
            shallow=False)

    def attached(self, job):
        """In the journal: one entry per rank, with the request's id."""
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

    def pools(self):
        status = json.loads(self.inside.run("sluicectl", "--admin", "status",
                                            "--json"))
        return status["gpus"] + status["host"]

    def leased(self):
        return sum(pool["leased_bytes"] for pool in self.pools())

    def stop(self):
        """A rank hears of it, and computes on with the memory that it has."""
        run_ = Run(self.build, self.work, "stopped")
        run_.goes_on()
        self.inside.run("systemctl", "stop", "sluiced")
        run_.goes_on()
        with open(run_.err, encoding="utf-8") as file:
            said = file.read()
        assert "sluiced was stopped on this node" in said, said
        run_.end()

    def start_by_the_socket(self):
        """Where systemd makes it: a rank that comes first has its daemon."""
        assert not self.inside.succeeds("systemctl", "is-enabled", "-q",
                                        "sluiced.socket")
        self.inside.run("systemctl", "enable", "--now", "sluiced.socket")
        assert not self.inside.succeeds("systemctl", "is-active", "-q",
                                        "sluiced")
        first = Run(self.build, self.work, "first")
        first.goes_on()
        before = self.serves()
        self.kill(before)
        wait_until(lambda: self.serves() != before, 60, "another daemon serves")
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
        self.install()
        self.looked_at()
        disturbed = Run(self.build, self.work, "disturbed")
        disturbed.goes_on()
        self.attached("disturbed")
        self.disturb(disturbed)
        self.install_another(disturbed)
        disturbed.end()
        wait_until(lambda: self.leased() == 0, 20, "all memory is back")
        losses = disturbed.losses()
        calm = Run(self.build, self.work, "calm")
        calm.goes_on(len(losses))
        calm.end()
        assert calm.losses()[:len(losses)] == losses, "the losses differ"
        print(f"{len(losses)} steps, bit for bit those of an undisturbed run")
        self.stop()
        self.start_by_the_socket()
        self.remove()

    def journal(self):
        print(self.inside.run("journalctl", "--no-pager", "-n", "60",
                              "-u", "sluiced"))
        print(self.inside.run("systemctl", "--no-pager", "status", "sluiced"))


def in_namespaces(make_check, build, work):
    rootfs.boot(work + "/rootfs")
    if os.fork() == 0:
        check = make_check(build, work)
        try:
            check.all()
            print("PASSED", flush=True)
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
            try:
                check.journal()
            finally:
                print("FAILED", flush=True)
        os._exit(0)
    rootfs.become_systemd(work + "/rootfs")


def replace_daemon(deb, program):
    """The package's sluiced is this one."""
    with tempfile.TemporaryDirectory() as tree:
        run("dpkg-deb", "-R", deb, tree)
        shutil.copy(program, tree + "/usr/bin/sluiced")
        run("dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, deb)


def prepare(build, work):
    quick = ["cpack", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none"]
    run(*quick, "-B", work + "/debs", cwd=build)
    run(*quick, "-B", work + "/next", "-D", "CPACK_COMPONENTS_ALL=daemon",
        "-D", "CPACK_PACKAGE_VERSION=" + NEXT_VERSION, cwd=build)
    [deb] = glob.glob(work + "/next/*.deb")
    # As all of a package's programs are.
    run("strip", "-o", work + "/sluiced-next", build + "/bin/sluiced-next")
    replace_daemon(deb, work + "/sluiced-next")
    debs = glob.glob(work + "/debs/*.deb")
    assert len(debs) == 4, debs
    rootfs.make(work + "/rootfs", rootfs.what_they_need(debs),
                work + "/apt.conf")


def skips():
    return os.geteuid() != 0 and not os.environ.get("CI")


def main(script, make_check):
    """Runs the check's `all` in a booted Debian; `script` calls this."""
    if sys.argv[1] == "--inside":
        in_namespaces(make_check, *sys.argv[2:])
    if skips():
        print("skipped: making and booting a Debian needs root")
        sys.exit(77)
    # What is booted goes then, too, and its folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    build, made = os.path.abspath(sys.argv[1]), sys.argv[2:]
    # Below the build, as /tmp and /run become the new Debian's.
    with tempfile.TemporaryDirectory(dir=build, prefix="rootfs-") as work:
        os.chmod(work, 0o755)
        if made:
            run("cp", "-a", made[0] + "/.", work)
        else:
            prepare(build, work)
        passed = False
        before = rootfs.cgroups()
        with subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
                 "--mount", "--cgroup", "--uts", "--ipc", "--net",
                 sys.executable, os.path.abspath(script), "--inside", build,
                 work],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True) as booted:
            try:
                for line in booted.stdout:
                    print(line, end="", flush=True)
                    passed = line == "PASSED\n"
                    if passed or line == "FAILED\n":
                        break  # its systemd has the pipe too
            finally:
                booted.kill()  # its systemd goes with it, and all it started
        rootfs.remove_cgroups(but=before)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main(__file__, Check)
