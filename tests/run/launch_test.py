#!/usr/bin/env python3
"""Tests launch.py: a test starts with default signals in an empty folder, and
all processes that it started end with it."""

import os
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LAUNCH = os.path.join(HERE, "launch.py")


def launch(script, limit=60, **more):
    environment = {**os.environ, "SLUICE_TEST_LIMIT": str(limit)}
    return subprocess.run([LAUNCH, "sh", "-c", script], env=environment,
                          capture_output=True, text=True, timeout=60, **more)


def is_running(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


class Launch(unittest.TestCase):

    def test_the_exit_status_is_the_programs(self):
        self.assertEqual(launch("exit 77").returncode, 77)
        self.assertEqual(launch("exit 0").returncode, 0)

    def test_a_crash_is_named(self):
        done = launch("kill -SEGV $$")
        self.assertEqual(done.returncode, 128 + signal.SIGSEGV)
        self.assertIn("SIGSEGV", done.stderr)

    def test_ignored_and_blocked_signals_are_default(self):
        def ignore():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        done = launch("grep -E 'Sig(Ign|Blk)' /proc/self/status",
                      preexec_fn=ignore)
        self.assertEqual([line.split()[1] for line in done.stdout.splitlines()],
                         ["0" * 16] * 2)

    def test_an_empty_folder_is_made_for_a_test_and_removed(self):
        done = launch('pwd; ls; test "$TMPDIR" = "$PWD"')
        self.assertEqual(done.returncode, 0)
        [folder] = done.stdout.split()
        self.assertFalse(os.path.exists(folder))

    def test_processes_of_other_users_can_reach_the_folder(self):
        done = launch('stat -c %a "$PWD"')
        self.assertEqual(done.stdout.strip(), "755")

    def test_the_limit_ends_all_processes_of_a_test(self):
        done = launch("sleep 1001 & setsid sleep 1002 & echo $!; sleep 1003",
                      limit=1)
        self.assertEqual(done.returncode, 124)
        self.assertIn("limit of 1 s", done.stderr)
        self.assertIn("sleep 1002", done.stderr)
        self.assertFalse(is_running(done.stdout))

    def test_a_process_that_is_left_behind_fails_the_test_and_ends(self):
        done = launch("setsid sleep 1004 & echo $!")
        self.assertEqual(done.returncode, 1)
        self.assertIn("sleep 1004", done.stderr)
        self.assertFalse(is_running(done.stdout))

    def test_a_process_that_ends_soon_after_the_test_is_waited_for(self):
        done = launch("(sleep 0.3; echo late) & exit 0")
        self.assertEqual((done.returncode, done.stdout), (0, "late\n"))

    def test_a_signal_to_the_launcher_ends_the_test(self):
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            with self.subTest(number), subprocess.Popen(
                    [LAUNCH, "sh", "-c", "setsid sleep 1005 & echo $!; wait"],
                    stdout=subprocess.PIPE, text=True) as process:
                pid = process.stdout.readline()
                process.send_signal(number)
                self.assertEqual(process.wait(60), -number)
                self.assertFalse(is_running(pid))

    def test_a_program_that_is_not_there_is_an_error(self):
        done = subprocess.run([LAUNCH, "/no/such"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 127)
        self.assertIn("/no/such", done.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main())
