#!/usr/bin/env python3
"""Tests the descriptor store of a real systemd: systemd_test.py STORING_DAEMON

Boots a systemd in private namespaces (own /run and /tmp, no unit but the
test's). This systemd starts the daemon of tests/daemon/keeper, and a peer
process kills that daemon 22 times. Needs root, unshare and systemd; without
them, prints what is missing and exits 77.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "../../support"))
import own_systemd

SYSTEMD = "/lib/systemd/systemd"
FOLDER = "/run/storing"
SIZE = 2000
SERVICE = f"""[Unit]
DefaultDependencies=no
StartLimitIntervalSec=0
[Service]
NotifyAccess=main
ExecStart={FOLDER}/daemon --runtime-dir {FOLDER}
# As systemd 254 would say by itself.
Environment=FDSTORE={SIZE}
FileDescriptorStoreMax={SIZE}
LimitNOFILE=20000
Restart=always
RestartSec=0
"""
TARGET = "[Unit]\nDefaultDependencies=no\nWants=storing.service\n"


class Peer:
    """Connects to the storing daemon, sends tagged questions and reads
    replies."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(15)
        deadline = time.monotonic() + 15
        while True:
            try:
                self.socket.connect(FOLDER + "/test.sock")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self.greeting = self.socket.recv(500).decode()
        self.tag = 0

    def ask(self, question):
        self.tag += 1
        self.socket.send(f"{self.tag} {question}".encode())
        while True:
            answer = self.socket.recv(500).decode()
            assert answer, "the daemon closed the connection"
            if answer.startswith(f"{self.tag} "):
                return answer.split(" ", 1)[1]

    def kill_daemon(self):
        os.kill(int(self.ask("pid")), signal.SIGKILL)


def check():
    peer = Peer()
    assert peer.greeting == "peer 0", peer.greeting
    assert peer.ask("fill 1000") == "filled"
    taken = []
    for death in range(20):
        daemon = int(peer.ask("pid"))
        time.sleep(0.01 * (death % 7))
        before = time.monotonic()
        os.kill(daemon, signal.SIGKILL)
        assert peer.ask("count") == "1003"
        taken.append(1000 * (time.monotonic() - before))
        assert peer.ask("text") == "text of 0"
        assert peer.ask("peer 0") == "lives"
    assert peer.ask("wrong") == "0"
    taken.sort()
    print(f"1,003 descriptors, SIGKILL to the first answer: median "
          f"{taken[len(taken) // 2]:.1f} ms, longest {taken[-1]:.1f} ms")
    assert peer.ask("drop") == "dropped"
    peer.kill_daemon()
    assert peer.ask("count") == "3"
    assert peer.ask("has x-0") == "no"
    full = peer.ask("fill 3000")
    assert f"it holds {SIZE} of {SIZE}" in full, full
    peer.kill_daemon()  # no descriptor was dropped silently
    assert peer.ask("count") == str(SIZE)


def boot(daemon):
    """Runs in the namespaces: becomes their systemd, while a child process
    checks the daemon."""
    mount = ["mount", "-t", "tmpfs", "tmpfs"]
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(mount + ["/run"], check=True)
    os.makedirs(FOLDER)
    units = "/run/systemd/system"
    os.makedirs(units)
    shutil.copy(daemon, FOLDER + "/daemon")
    for name, text in (("storing.service", SERVICE), ("st.target", TARGET)):
        with open(f"{units}/{name}", "w", encoding="ascii") as file:
            file.write(text)
    # Without a /tmp of its own, this systemd would empty the machine's.
    subprocess.run(mount + ["/tmp"], check=True)
    own_systemd.check_beside(check)
    os.execv(SYSTEMD, [SYSTEMD, "--system", "--unit=st.target",
                       "--log-target=null"])


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


def main():
    if sys.argv[1] == "--boot":
        boot(sys.argv[2])
    if os.geteuid() != 0:
        skip("namespaces of a systemd need root")
    if not os.path.exists(SYSTEMD) or not shutil.which("unshare"):
        skip("there is no systemd, or no unshare")
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        skip("this machine allows no namespaces")
    passed = own_systemd.passes(__file__, "--boot",
                                os.path.abspath(sys.argv[1]))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
