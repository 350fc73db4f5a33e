#!/usr/bin/env python3
"""local_users_test.py SLUICED KEEPER: what an administrator is told and may do
beside processes of other users."""

import array
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

sys.path.insert(0, os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "../../support"))
import running_sluiced

KEEPER, SLUICED = sys.argv.pop(), sys.argv.pop()
STRANGER = 4321
PATIENCE_S = 60


def varint(number):
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def field(number, value):
    """A protobuf field: bytes, or a whole number."""
    if isinstance(value, bytes):
        return bytes([number << 3 | 2]) + varint(len(value)) + value
    return bytes([number << 3]) + varint(value)


def hello(job):
    return field(1, field(1, 1) + field(2, job) + field(5, 1) + field(6, 1))


class Node(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        self.run_dir = folder.name + "/run"
        self.folder = folder.name
        self.config = running_sluiced.write_config(self.folder)

    def start(self):
        self.keeper = running_sluiced.start(
            self, [KEEPER, "--runtime-dir", self.run_dir, "--program", SLUICED,
                   "--", "--config", self.config],
            end=subprocess.Popen.terminate)

    def until(self, true):
        end = time.monotonic() + PATIENCE_S
        while not (found := true()):
            self.assertLess(time.monotonic(), end)
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

    def test_an_ended_process_is_not_named_as_a_later_holder(self):
        self.start()
        for job in b"first", b"later":
            pid = self.fork(lambda job=job: self.hold(job))
            found = self.until(lambda: self.status()["holders"])
            self.assertEqual([each["pid"] for each in found], [pid], job)
            self.kill(pid)
            self.until(lambda: not self.status()["holders"])

    def hold(self, job):
        """Leases memory, and closes the session but not the memory."""
        gpu = os.open(self.run_dir + "/sim/gpu0", os.O_RDWR)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as session:
            session.connect(self.run_dir + "/session.sock")
            session.sendmsg(
                [field(1, 1) + field(3, hello(job))],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                  array.array("i", [gpu]))])
            socket.recv_fds(session, 1 << 16, 8)
            session.send(
                field(1, 2) + field(3, field(2, field(3, 1 << 20))))
            _, self.held, _, _ = socket.recv_fds(session, 1 << 16, 8)

    def test_a_gpu_that_no_job_uses_may_be_taken_out(self):
        self.start()
        generation = self.status()["generation"]
        running_sluiced.write_config(
            self.folder, running_sluiced.CONFIG + "[sim]\ngpus = 1\n")
        self.keeper.send_signal(signal.SIGHUP)
        now = self.until(lambda: (now := self.status())
                         and now["generation"] != generation and now)
        self.assertEqual(len(now["gpus"]), 1)


if __name__ == "__main__":
    unittest.main()
