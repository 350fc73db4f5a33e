#!/usr/bin/env python3
"""local_users_test.py SLUICED KEEPER: what an administrator is told and may do
beside processes of other users."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

KEEPER, SLUICED = sys.argv.pop(), sys.argv.pop()
STRANGER = 4321
PATIENCE_S = 60
NODE = '[device]\ndriver = "sim"\n[http]\nlisten = ""\n'


class Node(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        self.run_dir = folder.name + "/run"
        self.config = folder.name + "/sluiced.toml"
        self.log = folder.name + "/log"
        self.write_config("")

    def write_config(self, more):
        with open(self.config, "w", encoding="ascii") as file:
            file.write(NODE + more)

    def start(self):
        arguments = ["--config", self.config]
        with open(self.log, "wb") as log:
            self.keeper = subprocess.Popen(
                [KEEPER, "--runtime-dir", self.run_dir, "--program", SLUICED,
                 "--", *arguments], stdout=subprocess.DEVNULL, stderr=log)
        self.addCleanup(self.keeper.wait)
        self.addCleanup(self.keeper.terminate)
        self.until(lambda: self.status() is not None)

    def until(self, true):
        end = time.monotonic() + PATIENCE_S
        while not (found := true()):
            with open(self.log, encoding="utf-8") as log:
                self.assertLess(time.monotonic(), end, log.read())
            time.sleep(0.05)
        return found

    def status(self):
        """Returns the snapshot, or None while no daemon serves."""
        with socket.socket(socket.AF_UNIX) as http:
            try:
                http.connect(self.run_dir + "/http.sock")
                http.sendall(b"GET /status.json HTTP/1.1\r\n\r\n")
                with http.makefile("rb") as answer:
                    head, _, body = answer.read().partition(b"\r\n\r\n")
            except OSError:
                return None
        return json.loads(body) if b" 200 " in head[:16] else None

    def fork(self, body):
        """Runs `body` in a process that lives until it is killed."""
        pid = os.fork()
        if pid == 0:
            try:
                body()
                signal.pause()
            finally:
                os._exit(1)
        self.addCleanup(self.kill, pid)
        return pid

    @staticmethod
    def kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it was killed before

    @unittest.skipIf(os.geteuid() != 0, "only root becomes another user")
    def test_another_users_lock_does_not_stop_the_next_daemon(self):
        self.start()
        generation = self.status()["generation"]

        def lock():
            os.setuid(STRANGER)
            folder = os.open(self.run_dir, os.O_RDONLY)
            fcntl.flock(folder, fcntl.LOCK_EX)  # waits for the daemon's end

        self.fork(lock)
        time.sleep(0.5)
        with open(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children",
                  encoding="ascii") as children:
            os.kill(int(children.read().split()[0]), signal.SIGKILL)
        self.until(lambda: (now := self.status())
                   and now["generation"] != generation)


if __name__ == "__main__":
    unittest.main()
