"""What a benchmark program is, and how one is run.

A benchmark NAME is the program bench-NAME of a build, or a script here that
drives the build's own programs (SCRIPTS). It takes `--json FILE` and writes a
list of {"name", "value", "unit", "target", "better", "detail"} into it; what
it compares, it measures side by side in the one run. `better` is "lower" or
"higher"; `target` may be null: then the figure is only shown.
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
# Few machines have a GPU, and an ablation takes over an hour.
DEFAULT = [name for name in KNOWN if name not in ("gpu", "ablation")]
# Too long for two builds in turns, the same package for both, judged by a limit
# alone, or of few machines: compared only where they are named.
LONG = ["ablation", "deaths", "gpu", "leases", "length", "python", "settings",
        "states", "upgrade"]
SCRIPTS = {"ablation": "ablation.py", "deaths": "deaths.py",
           "gpu": "gpu.py", "leases": "leases.py", "length": "length.py",
           "python": "python_step.py", "settings": "settings.py",
           "states": "states.py", "train": "train_steps.py",
           "upgrade": "upgrade.py"}
# What a script needs built; a program needs only itself.
NEEDS = {**dict.fromkeys(SCRIPTS, ["sluice-train", "sluiced",
                                   "sluice-worker"]), "length": ["sluiced"],
         "leases": ["client_big_leases_test", "sluiced"],
         "upgrade": ["sluice-train", "sluiced-next"]}
FIELDS = {"name", "value", "unit", "target", "better", "detail"}


class Failed(Exception):
    """A benchmark that cannot be run, or wrote what is no result."""


class Usage(Exception):
    """A wrong argument: one line, exit status 2."""


def targets(name):
    return NEEDS.get(name, ["bench-" + name])


def command(folder, name):
    """The command of benchmark `name` over the programs in `folder`."""
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
    """Runs to the end, in a process group of its own: Ctrl-C and the limit
    (TimeoutExpired) end all of it, daemons and ranks that a benchmark started
    included."""
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
    """Ctrl-C raises only from release() on: one between a process's start and
    the handle that ends it would leave the process behind."""
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
    """The entries that benchmark `name` wrote; what it prints goes to the
    file `output`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        status = finish([*command(folder, name), *flags, "--json", out.name],
                        stdout=output, stderr=output)
        if status != 0:
            raise Failed(f"it ended with status {status}")
        with open(out.name, encoding="utf-8") as file:
            try:
                entries = json.load(file)
            except ValueError as error:
                raise Failed(f"what it wrote is no JSON: {error}") from error
    if not entries:
        raise Failed("it wrote no entry")
    return [checked(entry, "bench-" + name) for entry in entries]
