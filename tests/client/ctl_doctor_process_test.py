#!/usr/bin/env python3
"""sluicectl doctor on this machine, with a daemon and without one:
ctl_doctor_process_test.py SLUICED SLUICECTL"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "../support"))
import running_sluiced

SLUICECTL = sys.argv.pop()
SLUICED = sys.argv.pop()
PROGRAMS = os.path.dirname(os.path.realpath(SLUICECTL)) + "/"


class Doctor(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = folder.name + "/run"
        self.config = running_sluiced.write_config(folder.name)

    def start(self, kept=False, **options):
        words = ["--runtime-dir", self.run_dir]
        config = ["--config", self.config]
        daemon = running_sluiced.start(
            self, [SLUICED + "-keeper", *words, "--", *config] if kept else
            [SLUICED, *words, *config], end=subprocess.Popen.terminate,
            **options)
        self.addCleanup(daemon.send_signal, signal.SIGCONT)
        return daemon

    def doctor(self, *words):
        return subprocess.run(
            [SLUICECTL, "--socket", self.run_dir + "/session.sock", "doctor",
             *words], capture_output=True, text=True, check=False, timeout=60)

    def found(self):
        done = self.doctor("--json")
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout.count("\n"), 1)
        answer = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0 if answer["ok"] else 1)
        return {f["what"]: f for f in answer["findings"]}

    def test_a_missing_daemon_is_a_problem_with_a_start_command(self):
        found = self.found()
        self.assertEqual(found["daemon"]["health"], "problem")
        self.assertIn("no socket at", found["daemon"]["said"])
        self.assertIn("sluiced-keeper --runtime-dir " + self.run_dir,
                      found["daemon"]["fix"])
        self.assertIn("no sluiced is seen", found["open files"]["said"])

    def test_doctor_works_with_a_folder_it_may_not_enter(self):
        os.mkdir(self.run_dir, 0)
        self.addCleanup(os.chmod, self.run_dir, 0o700)
        self.assertEqual(self.found()["daemon"]["health"], "problem")

    def test_limits_are_read_from_the_daemons_process(self):
        before = self.found()
        # The test itself may open more files.
        limit = 1000

        def less():
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        self.start(preexec_fn=less)
        found = self.found()
        self.assertEqual(found["daemon"]["health"], "ok")
        self.assertEqual(found["version"]["health"], "ok")
        self.assertEqual(found["open files"]["said"].split(":")[0],
                         f"at most {limit}")
        self.assertNotEqual(before["open files"]["said"],
                            found["open files"]["said"])
        self.assertEqual(found["store"]["health"], "warning")
        self.assertEqual(list(before), list(found))

    def test_a_keeper_and_its_daemon_are_found(self):
        self.start(kept=True)
        found = self.found()
        self.assertEqual(found["store"]["said"],
                         "sluiced-keeper keeps what sluiced has")
        self.assertNotIn("no sluiced is seen", found["open files"]["said"])
        self.assertEqual(found["daemon"]["health"], "ok")

    def test_too_wide_rights_are_a_problem_that_the_fix_mends(self):
        self.start()
        os.chmod(self.run_dir + "/admin.sock", 0o666)
        wide = self.found()["admin socket"]
        self.assertEqual(wide["health"], "problem")
        subprocess.run(wide["fix"], shell=True, check=True)
        self.assertEqual(self.found()["admin socket"]["health"], "ok")

    def test_a_stopped_daemon_gets_kill_cont_as_its_fix(self):
        daemon = self.start()
        daemon.send_signal(signal.SIGSTOP)
        found = self.found()
        self.assertEqual(found["daemon"]["fix"],
                         f"kill -CONT {daemon.pid}")
        daemon.send_signal(signal.SIGCONT)
        self.assertEqual(self.found()["daemon"]["health"], "ok")

    def test_the_restart_command_keeps_the_daemons_arguments(self):
        """The daemon has a relative --config and its own working folder."""
        folder, name = os.path.split(self.config)
        self.config = name
        daemon = self.start(cwd=folder)
        self.assertEqual(
            self.found()["store"]["fix"],
            f"kill {daemon.pid} && sleep 1 && {PROGRAMS}sluiced-keeper "
            f"--runtime-dir {self.run_dir} -- --config {folder}/{name}")

    def test_printed_commands_mend_their_problems(self):
        self.start()
        subprocess.run([SLUICECTL, "--socket", self.run_dir + "/session.sock",
                        "drain"], check=True, stdout=subprocess.DEVNULL)
        found = self.found()
        self.assertEqual(found["state"]["health"], "warning")
        subprocess.run(found["state"]["fix"], shell=True, check=True,
                       stdout=subprocess.DEVNULL)
        found = self.found()
        self.assertEqual(found["state"]["health"], "ok")
        kept = subprocess.Popen(
            ["sh", "-c", found["store"]["fix"].replace("&& /", "&& exec /")],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(kept.stdout.close)
        self.addCleanup(kept.wait)
        self.addCleanup(kept.terminate)
        self.assertIn("ready", kept.stdout.readline())
        found = self.found()
        self.assertEqual(found["store"]["health"], "ok")
        policy = self.run_dir + "/policy"
        with open(policy, "w", encoding="ascii") as file:
            file.write("{")
        os.chmod(policy, 0o600)
        damaged = self.found()["policy file"]
        self.assertEqual(damaged["health"], "problem")
        subprocess.run(damaged["fix"], shell=True, check=True)
        self.assertEqual(self.found()["policy file"]["health"], "ok")

    def test_text_output_has_one_line_per_check(self):
        done = self.doctor()
        lines = [line for line in done.stdout.splitlines() if " $ " not in line]
        self.assertEqual(len(lines), len(self.found()))
        for line in lines:
            self.assertRegex(line, "^(ok     |warning|problem)  [a-zA-Z]")


if __name__ == "__main__":
    unittest.main()
