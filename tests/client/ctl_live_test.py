#!/usr/bin/env python3
"""sluicectl top and events against a real daemon: ctl_live_test.py SLUICED
SLUICECTL"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "../support"))
import running_sluiced

SLUICECTL = sys.argv.pop()
SLUICED = sys.argv.pop()
PATIENCE_S = 20


class Live(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.config = running_sluiced.write_config(self.folder)
        self.start()

    def start(self):
        self.daemon = running_sluiced.start(
            self, [SLUICED, "--config", self.config, "--runtime-dir",
                   self.folder + "/run"])

    def words(self, *words):
        return [SLUICECTL, "--admin", "--socket",
                self.folder + "/run/session.sock", *words]

    def said(self, *words):
        return subprocess.run(self.words(*words), capture_output=True,
                              text=True, check=True).stdout

    def test_events_are_lines_with_a_time_and_a_number(self):
        self.assertEqual(self.said("events"), "")
        self.said("drain", "--reason", "disk")
        line = self.said("events")
        self.assertRegex(line, r"^20\d\d-\d\d-\d\dT[\d:.]+Z +1 drain +the node "
                               r"is drained by .*disk.*\n$")
        event = json.loads(self.said("events", "--json"))
        self.assertEqual((event["number"], event["kind"]), (1, "drain"))
        self.assertRegex(event["time"], "^20.*Z$")

    def test_events_follow_survives_a_restart_and_ends_on_ctrl_c(self):
        follows = subprocess.Popen(
            self.words("events", "--follow", "--interval", "0.1"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(follows.kill)
        self.addCleanup(follows.stdout.close)
        self.addCleanup(follows.stderr.close)
        self.said("drain")
        self.assertIn("is drained", self.next_line(follows))
        self.said("undrain")
        self.assertIn("not drained", self.next_line(follows))
        self.daemon.kill()
        self.daemon.wait()
        self.start()
        self.said("drain")
        self.assertIn("is drained", self.next_line(follows))
        follows.send_signal(signal.SIGINT)
        out, err = follows.communicate(timeout=PATIENCE_S)
        self.assertEqual((follows.returncode, out, err), (0, "", ""))

    def next_line(self, process):
        self.assertTrue(select.select([process.stdout], [], [], PATIENCE_S)[0],
                        "nothing came")
        return process.stdout.readline()

    def test_top_without_a_terminal_prints_one_status(self):
        one = self.said("top")
        self.assertIn("gpu 0", one)
        self.assertNotIn("\x1b", one)

    def test_top_fits_its_terminal_and_restores_it(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(SLUICECTL, self.words("top", "--interval", "0.1"))
        rows, columns = 6, 30
        fcntl.ioctl(terminal, termios.TIOCSWINSZ,
                    struct.pack("HHHH", rows, columns, 0, 0))
        shown = self.read_until(terminal, lambda text: text.count("\x1b[H") > 4)
        last = shown.split("\x1b[H")[-2]
        lines = [re.sub(r"\x1b\[\w", "", line) for line in last.split("\n")]
        self.assertLessEqual(len(lines), rows)
        self.assertLessEqual(max(len(line.strip("\r")) for line in lines),
                             columns)
        os.write(terminal, b"\x03")  # Ctrl-C
        rest = self.read_until(terminal, lambda text: "\x1b[?1049l" in text)
        self.assertIn("\x1b[?25h", rest)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        os.close(terminal)

    def test_q_ends_top_and_the_terminal_echoes_again(self):
        near, terminal = pty.openpty()
        self.addCleanup(os.close, near)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ,
                    struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(terminal)
        top = subprocess.Popen(self.words("top", "--interval", "60"),
                               stdin=terminal, stdout=terminal)
        self.addCleanup(top.kill)
        self.read_until(near, lambda text: "\x1b[J" in text)
        os.write(near, b"x")  # any other key redraws the screen
        self.assertNotIn("x", self.read_until(
            near, lambda text: "\x1b[J" in text).split("\x1b[H")[0])
        os.write(near, b"q")
        self.read_until(near, lambda text: "\x1b[?1049l" in text)
        self.assertEqual(top.wait(PATIENCE_S), 0)
        self.assertEqual(termios.tcgetattr(terminal), before)
        os.close(terminal)

    def read_until(self, terminal, enough):
        text, end = "", time.monotonic() + PATIENCE_S
        while not enough(text):
            left = end - time.monotonic()
            self.assertGreater(left, 0, text)
            if select.select([terminal], [], [], left)[0]:
                text += os.read(terminal, 65536).decode()
        return text

    def test_bad_input_is_one_error_line(self):
        for words in (["top", "--interval", "0"], ["events", "--follw"]):
            done = subprocess.run(self.words(*words), capture_output=True,
                                  text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
