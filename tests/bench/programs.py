"""Defines what a benchmark program is, and runs one.

A benchmark NAME is the program bench-NAME of a build, or a script here that
drives the build's own programs (SCRIPTS). It takes `--json FILE` and writes a
list of {"name", "value", "unit", "target", "better", "detail"} into that file.
Values that are compared are measured side by side in the same run. `better` is
"lower" or "higher". If `target` is null, the value is only shown.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
KNOWN = ["ipc", "grant", "ablation", "attention", "bandwidth", "deaths", "fits",
         "gpu", "leases", "length", "loss", "methods", "overlap", "planner",
         "python", "service", "settings", "states", "train", "upgrade"]
# Leaves out `gpu`, because few machines have a GPU, and `ablation`, which takes
# over an hour.
DEFAULT = [name for name in KNOWN if name not in ("gpu", "ablation")]
# Compared with another build only if they are named: they take too long for
# two builds in turns, use the same package for both builds, are judged by a
# limit alone, or run on few machines.
LONG = ["ablation", "deaths", "gpu", "leases", "length", "python", "settings",
        "states", "upgrade"]
SCRIPTS = {"ablation": "ablation.py", "deaths": "deaths.py",
           "gpu": "gpu.py", "leases": "leases.py", "length": "length.py",
           "python": "python_step.py", "settings": "settings.py",
           "states": "states.py", "train": "train_steps.py",
           "upgrade": "upgrade.py"}
# The programs that each script needs; a benchmark program needs only itself.
NEEDS = {**dict.fromkeys(SCRIPTS, ["sluice-train", "sluiced",
                                   "sluice-worker"]), "length": ["sluiced"],
         "leases": ["client_big_leases_test", "sluiced"],
         "upgrade": ["sluice-train", "sluiced-next"]}
FIELDS = {"name", "value", "unit", "target", "better", "detail"}


class Failed(Exception):
    """The benchmark could not run, or its result is invalid."""


class Usage(Exception):
    """An argument is wrong: prints one line, exit status 2."""


def targets(name):
    return NEEDS.get(name, ["bench-" + name])


def command(folder, name):
    """Returns the command of benchmark `name` with the programs in `folder`.
    """
    needed = [os.path.join(folder, target) for target in targets(name)]
    for path in needed:
        if not os.path.exists(path):
            raise Failed(f"there is no {path}")
    if name in SCRIPTS:
        return [sys.executable, os.path.join(HERE, SCRIPTS[name]), "--bin",
                folder]
    return needed


def checked(entry, origin):
    missing = FIELDS - set(entry)
    if missing:
        raise Failed(f"{origin}: an entry lacks {sorted(missing)}")
    if entry["better"] not in ("lower", "higher"):
        raise Failed(f"{origin}: better is '{entry['better']}', must be lower "
                     "or higher")
    return entry


def finish(arguments, limit_s=None, **options):
    """Runs a command to its end in its own process group. Ctrl-C and the limit
    (TimeoutExpired) end the whole group, including the daemons and ranks that
    a benchmark started."""
    with interrupts_held() as release:
        with subprocess.Popen(arguments, stdin=subprocess.DEVNULL,
                              start_new_session=True, **options) as process:
            try:
                release()
                return process.wait(limit_s)
            except BaseException:
                end_group(process)
                raise


@contextlib.contextmanager
def interrupts_held():
    """Delays Ctrl-C until release() is called. An interrupt between the start
    of a process and the assignment of its handle would leave the process
    behind."""
    before = signal.getsignal(signal.SIGINT)
    pressed = []

    def release():
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield release
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)


def end_group(process):
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            pass


def run(folder, name, output, *flags):
    """Runs benchmark `name` and returns the entries that it writes. What it
    prints goes to the file `output`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        status = finish([*command(folder, name), *flags, "--json", out.name],
                        stdout=output, stderr=output)
        if status != 0:
            raise Failed(f"it ended with status {status}")
        with open(out.name, encoding="utf-8") as file:
            try:
                entries = json.load(file)
            except ValueError as error:
                raise Failed(f"its output is not JSON: {error}") from error
    if not entries:
        raise Failed("its output has no entry")
    return [checked(entry, "bench-" + name) for entry in entries]
