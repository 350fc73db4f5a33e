"""Real daemons and real ranks for the tests of sluice-train.

At the end of a test, every process started here is ended by its own id, and
the temporary folders are removed.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BIN = os.environ["SLUICE_BIN_DIR"]
# Modules that tests of several kinds share.
SUPPORT = os.path.join(os.path.dirname(__file__), "..", "..", "support")
TRAIN = os.path.join(BIN, "sluice-train")
# Set by the deep tier's entries: a test runs all of its shapes, moments and
# steps, not only some.
WHOLE = os.environ.get("SLUICE_WHOLE") == "1"
# Limit for events that must come eventually, on a busy machine. A test that
# checks a time has its own limit.
PATIENCE_S = 200
# Number of steps over which runs that must learn the same are compared.
PARITY_STEPS = 50 if WHOLE else 10

# A part of each configuration: repeated deaths must not freeze the daemon.
ALONE = """\
[http]
listen = ""
[restart]
freeze_after = 0
"""
CONFIG = """\
[device]
driver = "sim"
[sim]
gpus = {gpus}
gpu_memory = "{gpu_memory}"
host_memory = "{host_memory}"
{sim}
[pools]
host_bytes = "{host_pool}"
extent_bytes = "4MiB"
""" + ALONE

# A model so small that a test can start many runs.
MODEL = ("--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 "
         "--chunk 64").split()


def clean_environment():
    """Returns this process's environment without the variables by which a
    launcher would take itself for a rank, or find another daemon."""
    leave_out = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLUICE_SOCKET",
                 "SLURM_STEP_NUM_TASKS"}
    return {k: v for k, v in os.environ.items() if k not in leave_out}


class TrainTest(unittest.TestCase):
    """A test with its own folder and processes."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.text = os.path.join(self.folder, "text")
        with open(self.text, "w", encoding="utf-8") as file:
            for i in range(4000):
                file.write(f"line {i} of the text, {i * i % 977} times\n")

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, command, variables=None, **options):
        process = subprocess.Popen(
            command, env={**clean_environment(), **(variables or {})},
            text=True, **options)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()

    def configure(self, gpus=2, gpu_memory="64MiB", host_memory="256MiB",
                  host_pool=None, sim="", extra="", name="run"):
        """Returns (runtime directory, configuration). `sim` is added to the
        table [sim]. `host_pool` is the pool of each NUMA node."""
        runtime = self.path(name)
        os.mkdir(runtime, 0o700)
        config = self.path(name + ".toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(
                gpus=gpus, gpu_memory=gpu_memory, host_memory=host_memory,
                sim=sim, host_pool=host_pool or host_memory) + extra)
        return runtime, config

    def keeper(self, **settings):
        """Starts sluiced-keeper, which starts sluiced; returns the socket."""
        runtime, config = self.configure(**settings)
        log = open(self.path("keeper.log"), "w", encoding="utf-8")
        self.addCleanup(log.close)
        self.keeper_process = self.start(
            [os.path.join(BIN, "sluiced-keeper"), "--runtime-dir", runtime,
             "--", "--config", config], stdout=log, stderr=log)
        socket = os.path.join(runtime, "session.sock")
        self.wait_until(lambda: os.path.exists(socket), "no daemon starts")
        return socket

    def keepers_log(self):
        with open(self.path("keeper.log"), encoding="utf-8") as file:
            return file.read()

    def served(self):
        """Returns how many daemons have become ready."""
        return self.keepers_log().count("sluiced: ready")

    def daemon(self, **settings):
        """Starts sluiced; returns its socket."""
        runtime, config = self.configure(**settings)
        self.sluiced = self.start([os.path.join(BIN, "sluiced"), "--config",
                                   config, "--runtime-dir", runtime],
                                  stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        line = self.sluiced.stdout.readline()
        self.assertIn("sluiced: ready", line)
        return os.path.join(runtime, "session.sock")

    def run_train(self, *arguments, command="train", limit_s=900):
        """Runs sluice-train and returns (exit status, stdout, stderr)."""
        process = self.start([TRAIN, command, *arguments],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=limit_s)
        return process.returncode, out, err

    def train(self, *arguments, status=0):
        """Runs sluice-train and returns its --json object; it must exit with
        `status`."""
        flags = [*MODEL, "--json"]
        if "--data" not in arguments:
            flags += ["--data", self.text]
        code, out, err = self.run_train(*flags, *arguments)
        self.assertEqual(code, status, err)
        return json.loads(out)

    def wait_until(self, condition, what):
        """Waits until `condition()`; returns the seconds it took. `what` is
        the error message on a timeout, or a function that returns it."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > PATIENCE_S:
                self.fail(f"after {PATIENCE_S} s: "
                          f"{what() if callable(what) else what}")
            time.sleep(0.02)
        return time.monotonic() - start

    def status(self, socket):
        """Returns the node's state as `sluicectl status --json` prints it."""
        answer = subprocess.run(
            [os.path.join(BIN, "sluicectl"), "--socket", socket, "status",
             "--json"], capture_output=True, text=True, check=True,
            env=clean_environment())
        return json.loads(answer.stdout)

    def leased(self, socket):
        """Returns the leased and quarantined bytes of all pools."""
        status = self.status(socket)
        pools = status["gpus"] + status["host"]
        return sum(p["leased_bytes"] + p["quarantined_bytes"] for p in pools)


def children_of(parent):
    """Returns the pids of the child processes of `parent`."""
    path = f"/proc/{parent}/task/{parent}/children"
    try:
        with open(path, encoding="utf-8") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return []


def kill_if_there(pid):
    """Kills the process and returns whether it existed. A killed daemon does
    not exist any more once its keeper has reaped it."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def running(program, folder):
    """Returns the pids of the processes of that program with `folder` in their
    command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == program and folder in words:
            found.append(int(pid))
    return found


def ranks_of(launcher):
    """Returns rank number -> pid of a launcher's children."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            if parent != launcher:
                continue
            with open(f"/proc/{pid}/environ", encoding="utf-8") as file:
                variables = dict(e.split("=", 1)
                                 for e in file.read().split("\0") if "=" in e)
        except (OSError, IndexError):
            continue
        if "RANK" in variables:
            found[int(variables["RANK"])] = int(pid)
    return found


def lines_of(path):
    """Returns the step log's lines so far."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []
