#!/usr/bin/env python3
"""sluicectl support-bundle with a daemon and without one:
ctl_bundle_process_test.py SLUICED SLUICECTL"""

import glob
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "../support"))
import running_sluiced

SLUICECTL = sys.argv.pop()
SLUICED = sys.argv.pop()
CONFIG = "# once: password = hunter2\n" + running_sluiced.CONFIG
ALWAYS = {"contents.txt", "doctor.txt", "doctor.json", "versions.txt",
          "limits.txt", "machine.txt"}
PATIENCE_S = 60


class Bundle(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.temporary = folder.name + "/tmp"
        os.mkdir(self.temporary)
        self.config = running_sluiced.write_config(self.folder, CONFIG)
        self.out = self.folder + "/bundle.tar.gz"

    def start(self, config=None, cwd=None):
        running_sluiced.start(
            self, [SLUICED, "--config", config or self.config, "--runtime-dir",
                   self.folder + "/run"], cwd=cwd)

    def words(self, *words):
        return [SLUICECTL, "--socket", self.folder + "/run/session.sock",
                "support-bundle", *words]

    def environment(self, **more):
        return {**os.environ, "TMPDIR": self.temporary, **more}

    def made(self, *words):
        done = subprocess.run(
            self.words("--out", self.out, *words), capture_output=True,
            text=True, check=False, timeout=PATIENCE_S, cwd=self.folder,
            env=self.environment())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(os.listdir(self.temporary), [])
        with tarfile.open(self.out) as archive:
            files = {os.path.basename(m.name): archive.extractfile(m).read()
                     for m in archive.getmembers() if m.isfile()}
        return done.stdout, {n: t.decode() for n, t in files.items()}

    def test_without_a_daemon_the_bundle_lists_what_is_left_out(self):
        said, files = self.made()
        self.assertEqual(set(files), ALWAYS)
        out = said.split("Left out:\n")[1]
        for name, why in (("status.json", "no socket at"),
                          ("metrics.txt", "http.sock"),
                          ("config.toml", "no sluiced is seen"),
                          ("journal.txt", "no unit")):
            self.assertRegex(out, rf"(?m)^  {name} .*{why}")
        self.assertNotEqual("nvidia.txt" in said,
                            "no NVIDIA GPU" in files["doctor.txt"])
        self.assertTrue(said.endswith(files["contents.txt"]), said)
        self.assertEqual(stat.S_IMODE(os.stat(self.out).st_mode), 0o600)

    def test_with_a_daemon_the_bundle_has_its_state(self):
        self.start()
        subprocess.run([SLUICECTL, "--socket", self.folder +
                        "/run/session.sock", "drain", "--reason", "disk"],
                       check=True, capture_output=True)
        said, files = self.made("--json")
        answer = json.loads(said)
        self.assertEqual(answer["bytes"], os.path.getsize(self.out))
        self.assertEqual({e["name"] for e in answer["contents"]} |
                         {"contents.txt"}, set(files))
        self.assertLess(ALWAYS, set(files))
        self.assertEqual(json.loads(files["status.json"])["driver"], "sim")
        self.assertIn("disk", files["events.jsonl"])
        self.assertIn("sluice_pool_bytes{", files["metrics.txt"])
        self.assertIn("warning  state", files["doctor.txt"])
        self.assertIn("sluiced 0.", files["versions.txt"])
        self.assertIn("Max open files", files["limits.txt"])
        self.assertIn("disk", files["policy.json"])
        self.assertIn('driver = "sim"', files["config.toml"])
        for name, text in files.items():
            self.assertNotIn("hunter2", text, name)
        self.assertIn("1 secret removed", files["contents.txt"])

    def test_a_relative_config_is_read_from_the_daemons_folder(self):
        """Guards against reading the file in sluicectl's working folder."""
        elsewhere = self.folder + "/elsewhere"
        os.mkdir(elsewhere)
        with open(elsewhere + "/sluiced.toml", "w", encoding="ascii") as file:
            file.write(CONFIG + "[pools]\n# the daemon's own\n")
        self.start(config="sluiced.toml", cwd=elsewhere)
        # sluicectl runs in a folder with another file of that name.
        files = self.made()[1]
        self.assertIn("# the daemon's own", files["config.toml"])

    def test_standard_output_gets_only_the_archive(self):
        done = subprocess.run(self.words("--out", "-"), capture_output=True,
                              check=True, timeout=PATIENCE_S,
                              env=self.environment())
        self.assertEqual(done.stdout[:2], b"\x1f\x8b")

    def slow_gzip(self):
        """Returns an environment with a gzip that makes the file `started` and
        then sleeps for 2 s."""
        programs = self.folder + "/programs"
        os.mkdir(programs)
        with open(programs + "/gzip", "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\ntouch {self.folder}/started\n"
                       "exec sleep 2\n")
        os.chmod(programs + "/gzip", 0o755)
        return self.environment(PATH=programs + ":" + os.environ["PATH"])

    def test_an_ending_signal_leaves_nothing_behind(self):
        environment = self.slow_gzip()
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            makes = subprocess.Popen(
                self.words("--out", self.out), env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(makes.kill)
            end = time.monotonic() + PATIENCE_S
            while not os.path.exists(self.folder + "/started"):
                self.assertLess(time.monotonic(), end, "gzip never started")
                time.sleep(0.01)
            makes.send_signal(number)
            out, _ = makes.communicate(timeout=PATIENCE_S)
            self.assertEqual((makes.returncode, out), (-number, b""))
            self.assertEqual(os.listdir(self.temporary), [])
            self.assertFalse(glob.glob(self.out + "*"))
            os.remove(self.folder + "/started")

    def test_bad_input_is_one_error_line(self):
        for words, what in ((["--out", self.folder + "/no/x"], "/no/x"),
                            (["--journal-lines", "many"], "many")):
            done = subprocess.run(self.words(*words), capture_output=True,
                                  text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(what, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    @unittest.skipIf(os.geteuid() != 0, "becoming another user needs root")
    def test_a_plain_users_bundle_names_what_is_denied(self):
        self.start()
        os.chmod(self.folder, 0o755)
        os.chmod(self.temporary, 0o777)
        nobody = pwd.getpwnam("nobody")
        done = subprocess.run(
            self.words("--out", self.temporary + "/x.gz"), check=True,
            capture_output=True, text=True, timeout=PATIENCE_S,
            env=self.environment(), user=nobody.pw_uid, group=nobody.pw_gid,
            extra_groups=[])
        self.assertIn("who may not open admin.sock", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^  metrics.txt .*Permission denied")


if __name__ == "__main__":
    unittest.main()
