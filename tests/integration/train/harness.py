"""Real daemons and real ranks for the tests of sluice-train.

Everything started here is ended by its own id when the test ends, and the
temporary folders go with it.
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
# Set by the deep tier's entries: all shapes, moments and steps of a test that
# otherwise runs some of them.
WHOLE = os.environ.get("SLUICE_WHOLE") == "1"
# For what must come at last, on a machine that is busy with others: a test that
# judges a time has a limit of its own.
PATIENCE_S = 200
# What runs that must learn the same are compared over.
PARITY_STEPS = 50 if WHOLE else 10

# The configuration of every daemon here: tests are about deaths in a row.
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

# A model small enough that a test starts many.
MODEL = ("--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 "
         "--chunk 64").split()


def clean_environment():
    """Ours, without what would make a launcher believe it is a rank."""
    leave_out = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLUICE_SOCKET",
                 "SLURM_STEP_NUM_TASKS"}
    return {k: v for k, v in os.environ.items() if k not in leave_out}


class TrainTest(unittest.TestCase):
    """A test with a folder and processes of its own."""

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
        """(runtime directory, configuration). `sim`: more of that table;
        `host_pool`: of each of its NUMA nodes, where they are several."""
        runtime = self.path(name)
        os.mkdir(runtime, 0o700)
        config = self.path(name + ".toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(gpus=gpus, gpu_memory=gpu_memory,
                                     host_memory=host_memory, sim=sim,
                                     host_pool=host_pool or host_memory) + extra)
        return runtime, config

    def keeper(self, **settings):
        """Starts sluiced-keeper, and it sluiced; returns the socket."""
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
        """How many daemons have come to serve."""
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
        """(exit status, stdout, stderr) of one sluice-train."""
        process = self.start([TRAIN, command, *arguments],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=limit_s)
        return process.returncode, out, err

    def train(self, *arguments, status=0):
        """The object of --json of a run that ends with `status`."""
        flags = [*MODEL, "--json"]
        if "--data" not in arguments:
            flags += ["--data", self.text]
        code, out, err = self.run_train(*flags, *arguments)
        self.assertEqual(code, status, err)
        return json.loads(out)

    def wait_until(self, condition, what):
        """The seconds it took. `what` is what is wrong otherwise, or says it
        when it is called."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > PATIENCE_S:
                self.fail(f"after {PATIENCE_S} s: "
                          f"{what() if callable(what) else what}")
            time.sleep(0.02)
        return time.monotonic() - start

    def status(self, socket):
        """What sluicectl tells of a node."""
        answer = subprocess.run(
            [os.path.join(BIN, "sluicectl"), "--socket", socket, "status",
             "--json"], capture_output=True, text=True, check=True,
            env=clean_environment())
        return json.loads(answer.stdout)

    def leased(self, socket):
        """Bytes of all GPUs and host pools that are not free."""
        status = self.status(socket)
        pools = status["gpus"] + status["host"]
        return sum(p["leased_bytes"] + p["quarantined_bytes"] for p in pools)


def children_of(parent):
    """Their pids."""
    path = f"/proc/{parent}/task/{parent}/children"
    try:
        with open(path, encoding="utf-8") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return []


def kill_if_there(pid):
    """Kills one that may have ended meanwhile, as a daemon that was killed
    before and that its keeper has reaped since; whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def running(program, folder):
    """Pids of the processes of that program, in that folder."""
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
    """Rank number -> pid of a launcher's children."""
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
    """The step log so far."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []
