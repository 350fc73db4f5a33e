"""A script that runs itself again in namespaces of its own, becomes a systemd there
and has a process beside it that checks: what its two halves have in common."""

import os
import subprocess
import sys
import traceback

# A process started with these ends with all that it started and mounted.
NAMESPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
              "--mount"]


def passes(script, *words, more=()):
    """Whether what `script` checks there holds; tells what it prints. `more`:
    namespaces."""
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
                    break  # its systemd has the pipe too
        finally:
            booted.kill()  # its systemd goes with it, and all it started
    return passed


def check_beside(check, explain=lambda: None):
    """In a process of its own, which tells `passes`; `explain` says more of a
    failure. The caller goes on, to become systemd."""
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
