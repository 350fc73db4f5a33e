#!/usr/bin/env python3
"""admin_cut_test.py SLUICED SLUICECTL: what sluicectl reports if the daemon
ends during an administrator's call.

A proxy socket between sluicectl and the daemon cuts the first connections
right after the request: the daemon receives the request, and its answer is
lost.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "../../support"))
import running_sluiced

SLUICECTL = sys.argv.pop()
SLUICED = sys.argv.pop()
PREFACE, HEADER = 24, 9  # bytes of HTTP/2's preface and of each frame's header
DATA, END_STREAM = 0, 1
PATIENCE_S = 120


class RequestEnd:
    """Detects in a stream of bytes that a whole request has passed."""

    def __init__(self):
        self._held = b""
        self._skipped = False

    def passes(self, data):
        self._held += data
        if not self._skipped and len(self._held) >= PREFACE:
            self._held, self._skipped = self._held[PREFACE:], True
        found = False
        while self._skipped and len(self._held) >= HEADER:
            size = int.from_bytes(self._held[:3], "big")
            kind, flags = self._held[3:5]
            if len(self._held) < HEADER + size:
                break
            self._held = self._held[HEADER + size:]
            found |= kind == DATA and bool(flags & END_STREAM)
        return found


class Cutter:
    """Listens at `path` and forwards to `behind`; cuts the first `cuts`
    connections after their request."""

    def __init__(self, path, behind, cuts):
        self._behind, self._cuts = behind, cuts
        self.cut = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._behind)
                threading.Thread(target=self._back, args=(far, near),
                                 daemon=True).start()
                threading.Thread(target=self._forth, args=(near, far),
                                 daemon=True).start()

    def _forth(self, near, far):
        end, cuts = RequestEnd(), self.cut < self._cuts
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                whole = end.passes(data)
                if cuts and whole:
                    self.cut += 1
                    # No answer reaches sluicectl.
                    near.shutdown(socket.SHUT_RDWR)
                far.sendall(data)
                if cuts and whole:
                    time.sleep(0.3)  # the daemon executes the request
                    break
            far.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _back(far, near):
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                near.sendall(data)
            near.shutdown(socket.SHUT_RDWR)


class AdminCut(unittest.TestCase):

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

    def ctl(self, *words, socket_name="run/admin.sock"):
        return subprocess.Popen(
            [SLUICECTL, *words, "--socket", self.folder + "/run/session.sock",
             "--admin-socket", f"{self.folder}/{socket_name}"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def said(self, *words, **more):
        """Returns (exit status, output, errors) of sluicectl."""
        process = self.ctl(*words, **more)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def cutting(self, cuts):
        cutter = Cutter(self.folder + "/cut.sock",
                        self.folder + "/run/admin.sock", cuts)
        self.addCleanup(cutter.close)
        return cutter

    def is_drained(self):
        status, out, err = self.said("status", "--admin")
        self.assertEqual(status, 0, err)
        return "DRAINED by" in out

    def test_an_idempotent_call_is_repeated(self):
        cutter = self.cutting(2)
        status, out, err = self.said("drain", "--reason", "disk",
                                     socket_name="cut.sock")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(cutter.cut, 2)
        self.assertTrue(self.is_drained())

    def test_the_outcome_of_a_cut_undrain_is_unknown(self):
        self.assertFalse(self.is_drained())
        self.assertEqual(self.said("drain", "--reason", "disk")[0], 0)
        self.assertTrue(self.is_drained())
        cutter = self.cutting(1)
        status, out, err = self.said("undrain", socket_name="cut.sock")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("the outcome is unknown", err)
        self.assertEqual(err.count("\n"), 1)
        self.assertEqual(cutter.cut, 1)
        end = time.monotonic() + PATIENCE_S
        # Waits until the request that was sent has taken effect.
        while self.is_drained():
            self.assertLess(time.monotonic(), end)

    def test_status_waits_for_the_next_daemon(self):
        self.daemon.kill()  # its socket file remains without a listener
        self.daemon.wait()
        self.assertTrue(os.path.exists(self.folder + "/run/admin.sock"))
        waits = self.ctl("status", "--admin")
        time.sleep(0.2)
        self.assertIsNone(waits.poll())
        self.start()
        out, err = waits.communicate(timeout=PATIENCE_S)
        self.assertEqual((waits.returncode, err), (0, ""))
        self.assertIn("GPU", out)


if __name__ == "__main__":
    unittest.main()
