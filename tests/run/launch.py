#!/usr/bin/python3 -BES
"""Runs one test: launch.py PROGRAM ARGUMENTS…

CTest starts every test through this program. The test has default signals
whatever the caller ignores, its own session, and an empty folder as its
working directory and TMPDIR. At the limit of SLUICE_TEST_LIMIT seconds all its
processes are killed. A process that is left when the test ends is killed, too,
and fails the test. If SLUICE_TEST_USER names a user, the test runs as that
user, with the folder as its HOME.

launch.py imports few modules, because it starts once per test.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile

from processes import adopt_orphans, default_signals, kill_all, left_behind

# How long a process may outlive its test, on a busy machine.
GRACE_SECONDS = 10
LIMIT_STATUS = 124  # like timeout(1)


def say(text):
    print(f"launch: {text}", file=sys.stderr, flush=True)


def end_on_signals():
    """Makes a signal that ends this process end the test, too."""
    def end(number, _):
        kill_all()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, end)


def account(folder):
    """Returns Popen's arguments for the user, and the user's environment."""
    name = os.environ.get("SLUICE_TEST_USER", "")
    if not name:
        return {}, {}
    import pwd  # pylint: disable=import-outside-toplevel
    entry = pwd.getpwnam(name)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    return ({"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []},
            # Lets git accept the tree, which belongs to another user.
            {"HOME": folder, "USER": name, "LOGNAME": name,
             "SLUICE_TEST_USER": "",  # a nested launch.py cannot switch users
             "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
             "GIT_CONFIG_VALUE_0": "*"})


def run(command, folder):
    user, environment = account(folder)
    environment["TMPDIR"] = folder
    # A daemon that the test starts for its user ends as soon as it is idle.
    environment["SLUICE_DAEMON_IDLE_S"] = "0"
    try:
        test = subprocess.Popen(command, cwd=folder, start_new_session=True,
                                env={**os.environ, **environment}, **user)
    except OSError as error:
        say(error)
        return 127
    limit = float(os.environ.get("SLUICE_TEST_LIMIT", 300))
    ends = select.poll()
    ends.register(os.pidfd_open(test.pid), select.POLLIN)
    if not ends.poll(limit * 1000):
        say(f"ended at its limit of {limit:g} s, with all of:")
        for pid, text in left_behind(0):
            say(f"  {pid} {text}")
        return LIMIT_STATUS
    status = test.wait()
    left = left_behind(GRACE_SECONDS)
    for pid, text in left:
        say(f"the test left this process behind: {pid} {text}")
    if status < 0:
        say(f"ended by {signal.Signals(-status).name}")
        return 128 - status
    return status or (1 if left else 0)


def main():
    default_signals()
    end_on_signals()
    adopt_orphans()
    folder = tempfile.mkdtemp(prefix="test")
    # Other users may enter the folder: root's tests start their processes.
    os.chmod(folder, 0o755)
    try:
        return run(sys.argv[1:], folder)
    finally:
        kill_all()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
