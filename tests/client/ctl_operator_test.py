#!/usr/bin/env python3
"""Tests what an operator meets on a node with users, such as a full disk or a
used port: ctl_operator_test.py [CLASS] SLUICED SLUICECTL"""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "../support"))
import running_sluiced

SLUICECTL = sys.argv.pop()
SLUICED = sys.argv.pop()
PATIENCE_S = 60
NOBODY = 65534


class Node(unittest.TestCase):
    """Provides a daemon that each test starts itself."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        self.run_dir = folder.name + "/run"
        self.config = running_sluiced.write_config(folder.name)

    def start(self, **options):
        return running_sluiced.start(
            self, [SLUICED, "--config", self.config, "--runtime-dir",
                   self.run_dir], **options)

    def words(self, *words):
        return [SLUICECTL, "--socket", self.run_dir + "/session.sock", *words]

    def ctl(self, *words, **options):
        options = {"stdout": subprocess.PIPE, **options}
        return subprocess.run(self.words(*words), stderr=subprocess.PIPE,
                              text=True, check=False, timeout=PATIENCE_S,
                              **options)

    def soon(self, is_so, what):
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.1)


class LostOutput(Node):

    COMMANDS = ("status", "status --json", "jobs", "budget --json", "top",
                "doctor", "plan validate", "plan swap --example", "--version",
                "plan --help", "plan train --model llama-8b --hardware "
                "h100-80g --gpus 8 --seq-len 128K --compare --json")

    def test_sigpipe_does_not_end_the_daemon(self):
        self.start().send_signal(signal.SIGPIPE)
        self.assertEqual(self.ctl("status").returncode, 0)

    def test_a_full_disk_is_one_line_and_exit_status_1(self):
        self.start()
        with open("/dev/full", "w", encoding="ascii") as full:
            for command in self.COMMANDS:
                done = self.ctl("--admin", *command.split(), stdout=full)
                self.assertEqual(done.returncode, 1, command)
                self.assertRegex(done.stderr, r"^error: cannot write to "
                                 r"standard output: .* (device|full\?)\n$")
            for words in ([SLUICED, "--version"],
                          [SLUICED, "--config", self.config, "--check-config",
                           "--runtime-dir", self.run_dir],
                          [SLUICED + "-keeper", "--help"]):
                if not os.path.exists(words[0]):
                    continue
                done = subprocess.run(words, stdout=full, check=False,
                                      stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1, words)

    def test_an_unwritable_warning_does_not_fail_the_check(self):
        with open(self.config, "w", encoding="ascii") as config:
            config.write('[device]\ndriver = "auto"\n')  # warns of simulation
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run(
                [SLUICED, "--config", self.config, "--check-config",
                 "--runtime-dir", self.run_dir], check=False,
                stdout=subprocess.DEVNULL, stderr=full)
        self.assertEqual(done.returncode, 0)

    def test_a_closed_pipe_is_exit_status_1_without_a_message(self):
        self.start()
        for command in self.COMMANDS:
            reads, writes = os.pipe()
            os.close(reads)
            done = self.ctl("--admin", *command.split(), stdout=writes)
            os.close(writes)
            self.assertEqual((done.returncode, done.stderr), (1, ""), command)

    def test_a_daemon_serves_on_if_its_ready_line_is_lost(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            daemon = subprocess.Popen(
                [SLUICED, "--config", self.config, "--runtime-dir",
                 self.run_dir], stdout=full, stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        self.soon(lambda: self.ctl("status").returncode == 0,
                  "sluiced does not serve")
        daemon.terminate()
        self.assertEqual(daemon.wait(PATIENCE_S), 0)


class Administrators(Node):

    def json_of(self, *words):
        done = self.ctl(*words)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        self.assertEqual(done.stdout.count("\n"), 1)
        return json.loads(done.stdout)

    def test_json_may_stand_before_or_after_a_command(self):
        self.start()
        self.assertEqual(
            self.json_of("drain", "--json", "--reason", "disk"),
            {"drained": True, "ranks": 0})
        self.assertEqual(self.json_of("--json", "undrain"), {"drained": False})
        self.assertEqual(
            self.json_of("budget", "set", "--job", "a", "--gpu", "1MiB",
                         "--host", "unlimited", "--json"),
            {"job": "a", "uid": None, "cgroup": None,
             "gpu_limit_bytes": 1 << 20, "host_limit_bytes": None})
        self.assertEqual(
            self.json_of("--json", "reserve", "--user", "7", "--numa", "0",
                         "--memory", "1MiB"),
            {"pool": "numa", "index": 0, "uid": 7, "cgroup": None,
             "bytes": 1 << 20})
        kept = self.json_of("--admin", "budget", "--json")["reservations"]
        self.assertEqual([(each["uid"], each["bytes"]) for each in kept],
                         [(7, 1 << 20)])
        self.assertIn("gpus", self.json_of("--admin", "top", "--json"))
        self.assertIn("gpus", self.json_of("--admin", "--json", "status"))
        done = self.ctl("evict", "none", "--json")
        self.assertEqual((done.returncode, done.stdout), (2, ""))

    def test_an_impossible_name_or_size_is_refused(self):
        self.start()
        for words, said in (
                (("budget", "set", "--job", "my job", "--gpu", "1GiB"),
                 "job has a character with code 32"),
                (("budget", "set", "--job", "j" * 65, "--gpu", "1GiB"),
                 "job has 65 characters, the limit is 64"),
                (("budget", "set", "--job", "j", "--gpu", "1048576TiB"),
                 "the limit is 2^60"),
                (("evict", "jöb"), "printable ASCII"),
                (("evict", ""), "job is empty"),
                (("budget", "set", "--user", "4294967295", "--gpu", "1GiB"),
                 "there is no user '4294967295'"),
                (("budget", "set", "--user", "7", "--cgroup", "slurm/job_7",
                  "--gpu", "1GiB"), "no cgroup is called 'slurm/job_7'"),
                (("reserve", "--user", "7", "--cgroup", "job_7", "--numa", "0",
                  "--memory", "1MiB"), "no cgroup is called 'job_7'"),
                (("reserve", "--user", "7", "--numa", "0", "--memory",
                  "1048576TiB"), "the limit is 2^60")):
            done = self.ctl(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_32_concurrent_commands_all_succeed(self):
        self.start()
        calls = [subprocess.Popen(
            self.words("budget", "set", "--user", str(user), "--host", "1GiB"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for user in range(1, 33)]
        said = [call.communicate(timeout=PATIENCE_S)[1] for call in calls]
        self.assertEqual([c.returncode for c in calls], [0] * 32, said)
        limits = json.loads(self.ctl("--admin", "budget", "--json").stdout)
        self.assertEqual(len(limits["limits"]), 32)


class MetricsPort(Node):

    def setUp(self):
        super().setUp()
        probe = socket.create_server(("127.0.0.1", 0))
        self.port = probe.getsockname()[1]
        probe.close()
        self.config = running_sluiced.write_config(
            os.path.dirname(self.config), '[device]\ndriver = "sim"\n[http]\n'
            f'listen = "127.0.0.1:{self.port}"\n')

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics",
                                    timeout=PATIENCE_S) as page:
            return page.read().decode()

    def serves(self):
        try:
            return "sluice_build_info" in self.metrics()
        except urllib.error.HTTPError as starting:
            self.assertEqual(starting.code, 503)
            return False

    def finding(self):
        answer = json.loads(self.ctl("doctor", "--json").stdout)
        return next(f for f in answer["findings"] if f["what"] == "metrics")

    def test_a_used_port_is_reported_and_tried_until_it_is_free(self):
        taken = socket.create_server(("127.0.0.1", self.port))
        self.start()
        status = json.loads(self.ctl("status", "--json").stdout)
        self.assertEqual(status["http"]["listen"], f"127.0.0.1:{self.port}")
        self.assertIn("Address already in use", status["http"]["fault"])
        self.assertIn("NO METRICS over TCP: cannot listen on",
                      self.ctl("status").stdout)
        found = self.finding()
        self.assertEqual(found["health"], "problem")
        self.assertIn(f"user {os.geteuid()} listens there", found["said"])
        taken.close()
        self.soon(lambda: self.finding()["health"] == "ok",
                  "sluiced does not listen")
        self.assertIn("sluice_http_listening 1\n", self.metrics())

    def test_public_status_hides_the_administrators_name(self):
        self.start()
        self.ctl("drain", "--reason", "secret")
        with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/status.json",
                timeout=PATIENCE_S) as page:
            drained = json.load(page)["drained"]
        self.assertEqual((drained["by"], drained["reason"]), ("", ""))
        self.assertGreaterEqual(drained["age_s"], 0)

    def test_the_port_is_held_across_restarts_and_deaths(self):
        keeper = running_sluiced.start(
            self, [SLUICED + "-keeper", "--runtime-dir", self.run_dir, "--",
                   "--config", self.config], end=subprocess.Popen.terminate)
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            before = self.child_of(keeper.pid)
            os.kill(before, number)
            while self.child_of(keeper.pid) in (None, before):
                with self.assertRaises(OSError) as refused:
                    socket.create_server(("127.0.0.1", self.port)).close()
                self.assertEqual(refused.exception.errno, errno.EADDRINUSE)
            self.soon(self.serves, "the next daemon serves no metrics")

    @staticmethod
    def child_of(pid):
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
        return int(children[0]) if children else None


class Umask(Node):

    def test_the_starters_umask_does_not_change_file_modes(self):
        self.start(umask=0o077)
        for path, mode in (("", 0o711), ("/sim", 0o755),
                           ("/session.sock", 0o666),
                           ("/sim/node.state", 0o644), ("/sim/gpu0", 0o666)):
            found = os.stat(self.run_dir + path).st_mode & 0o777
            self.assertEqual(oct(found), oct(mode), path)


@unittest.skipIf(os.geteuid() != 0, "only root can become another user")
class AsRoot(Node):

    def test_root_is_told_of_the_admin_flag(self):
        self.start()
        for command in ("status", "jobs", "budget", "events"):
            self.assertIn("sluicectl --admin shows them too\n",
                          self.ctl(command).stderr, command)
            self.assertEqual(self.ctl("--admin", command).stderr, "", command)
        other = self.ctl("status", user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertEqual((other.returncode, other.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
