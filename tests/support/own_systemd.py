"""Helpers of a script that starts itself again in separate namespaces. There
it becomes a systemd, while a child process runs the checks."""

import os
import subprocess
import sys
import traceback

# Prefix of a command. Its processes and mounts end when the command ends.
NAMESPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
              "--mount"]


def passes(script, *words, more=()):
    """Runs `script` in the namespaces, prints its output, and returns whether
    its checks pass. `more` has options of unshare for further namespaces."""
    passed = False
    with subprocess.Popen(
            [*NAMESPACES, "--cgroup", "--uts", *more, sys.executable,
             os.path.abspath(script), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True) as booted:
        try:
            for line in booted.stdout:
                print(line, end="", flush=True)
                passed = line == "PASSED\n"
                if passed or line == "FAILED\n":
                    break  # the systemd also holds the pipe open
        finally:
            # Also ends the systemd and all processes that were started there.
            booted.kill()
    return passed


def check_beside(check, explain=lambda: None):
    """Runs `check` in a child process, which reports the result to `passes`;
    `explain` prints more about a failure. The caller continues and becomes
    systemd."""
    if os.fork() != 0:
        return
    try:
        check()
        print("PASSED", flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        try:
            explain()
        finally:
            print("FAILED", flush=True)
    os._exit(0)
