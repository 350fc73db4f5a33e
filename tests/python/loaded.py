"""Loads modules once and then runs programs in forks of itself, for tests that
need many processes with torch. support.Loaded starts this program.

    loaded.py MODULE...

Each line of stdin is a JSON object with a program, its arguments, environment
variables, and files for its output. A fork runs the program, and the program's
exit status is written as a line of stdout. The fork ends like a separate
process: its __main__ lives until the interpreter's end, and exit handlers of
libraries run.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import types

PR_SET_PDEATHSIG = 1


def asked_here() -> dict | None:
    """Forks for each line of stdin. Returns the line's request in the fork,
    and None in the parent after the last line."""
    server = os.getpid()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


def become(asked: dict) -> types.ModuleType:
    """Applies the request's files, variables and arguments to this process;
    returns an empty __main__ for its program."""
    files = ((os.devnull, os.O_RDONLY), (asked["out"], os.O_WRONLY),
             (asked["err"], os.O_WRONLY))
    for number, (path, flags) in enumerate(files):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(asked["variables"])
    sys.argv = [asked["program"], *asked["arguments"]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = asked["program"]
    return main


for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()  # garbage collection in a fork does not touch (copy) loaded objects
if (asked := asked_here()) is not None:
    main = become(asked)
    with open(main.__file__, encoding="utf-8") as file:
        source = file.read()
    exec(compile(source, main.__file__, "exec", dont_inherit=True),
         main.__dict__)
