"""Somebody who connects to the session socket all the time."""

import socket
import struct
import threading

from rootfs import wait_until

SOCKET = "/run/sluice/session.sock"
# A packet with a Hello of protocol 1, of an observer (proto/session.proto).
HELLO = bytes.fromhex("08011a0b0a09" "0801" "12016b" "1801" "4801")
ANSWERED = b"GPU-sim-0"  # its Welcome lists the GPUs
PATIENCE = struct.pack("ll", 30, 0)


class Knocking:
    """Until it is left, which raises what was wrong. Whoever is not answered by
    the daemon that accepted him comes again, as libsluice does
    (Connection::Greet); to be refused is wrong."""

    def __init__(self):
        self.answered = 0
        self.wrong = None
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.knock, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *raised):
        self.ends.set()
        self.thread.join(60)
        self.goes_well()

    def goes_well(self):
        if self.wrong is not None:
            raise AssertionError(
                f"refused after {self.answered} answers") from self.wrong

    def goes_on(self):
        """So many more are answered."""
        wanted = self.answered + 20

        def there():
            self.goes_well()
            return self.answered >= wanted
        wait_until(there, 60, "who connects is answered")

    def knock(self):
        try:
            while not self.ends.wait(0.001):
                self.answered += self.is_answered()
        except (OSError, AssertionError) as wrong:
            self.wrong = wrong

    def is_answered(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            # Not settimeout, with which a full backlog is an error at once.
            for wait in socket.SO_SNDTIMEO, socket.SO_RCVTIMEO:
                peer.setsockopt(socket.SOL_SOCKET, wait, PATIENCE)
            peer.connect(SOCKET)
            try:
                peer.send(HELLO)
                said = peer.recv(1 << 16)
            except (BrokenPipeError, ConnectionResetError):
                return False
        assert not said or ANSWERED in said, said
        return bool(said)
