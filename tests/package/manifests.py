"""Reads the manifests of deploy/kubernetes and runs their containers' programs
in a folder of a test, on simulated GPUs."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import installed
import yaml

DEPS = os.environ.get("SLUICE_DEPS", os.path.expanduser("~/.cache/sluice"))
TORCH = DEPS + "/venv/bin/python"
BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(installed.HERE))
FOLDER = ROOT + "/deploy/kubernetes"
# Limit for events that must come eventually, on a busy machine.
PATIENCE_S = 200


def documents(name):
    with open(f"{FOLDER}/{name}", encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def of_kind(name, kind):
    [found] = [d for d in documents(name) if d["kind"] == kind]
    return found


def container(name, of="containers"):
    """Returns the only container of the DaemonSet in the file `name`."""
    [found] = of_kind(name, "DaemonSet")["spec"]["template"]["spec"][of]
    return found


def below(folder, words):
    return [folder + w if w.startswith("/") else w for w in words]


class Node:
    """Runs the programs of a node's pods in `folder`."""

    def __init__(self, folder):
        self.folder, self.said = folder, folder + "/ranks.log"
        for name in "etc/sluice", "opt/sluice":
            os.makedirs(f"{folder}/{name}")
        config = of_kind("node.yaml", "ConfigMap")["data"]["sluiced.toml"]
        with open(folder + "/etc/sluice/sluiced.toml", "w",
                  encoding="ascii") as file:
            file.write(config.replace(":9435", ":0").replace(
                "/var/lib", folder).replace(
                "nobody", "nobody" if os.getuid() == 0 else "") +
                '[sim]\ngpu_memory = "64MiB"\nhost_memory = "256MiB"\n')
        self.keeper = None

    def append(self, toml):
        with open(self.folder + "/etc/sluice/sluiced.toml", "a",
                  encoding="ascii") as file:
            file.write(toml)

    def crash_at(self, point):
        """Makes the keeper's daemon (crashing-sluiced) die once at `point`."""
        with open(self.folder + "/plan", "w", encoding="ascii") as file:
            file.write(point + " 1\n")

    def start(self):
        with open(self.folder + "/keeper.log", "w", encoding="utf-8") as log:
            self.keeper = subprocess.Popen(
                [BUILD + "/bin/sluiced-keeper",
                 *below(self.folder, container("node.yaml")["args"]),
                 "--driver", "sim"], stdout=log, stderr=log,
                env=dict(os.environ, SLUICE_CRASH_PLAN=self.folder + "/plan"))

    def log(self):
        with open(self.folder + "/keeper.log", encoding="utf-8") as file:
            return file.read()

    def upgrade(self, image):
        """Runs what daemon.yaml's init container runs, with `image` as the
        image's /usr/bin."""
        shell, script, source, *rest = container(
            "daemon.yaml", "initContainers")["command"]
        assert (script, source) == ("/upgrade/upgrade.sh", "/usr/bin")
        return subprocess.run(
            [shell, FOLDER + "/upgrade.sh", image, *below(self.folder, rest),
             "--driver", "sim"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False)

    def wait_until_it_serves(self):
        deadline = time.monotonic() + PATIENCE_S
        # The admin socket appears a moment after the session socket.
        while not all(os.path.exists(f"{self.folder}/run/{name}.sock")
                      for name in ("sluice/session", "sluice-admin/admin")):
            assert self.keeper.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def wait_for_ranks(self, count):
        """Waits until `count` ranks hold a lease."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = json.loads(installed.run(
                BUILD + "/bin/sluicectl", "--admin-socket", self.folder +
                "/run/sluice-admin/admin.sock", "status", "--json"))
            if sum(rank["host_bytes"] > 0 for job in status["jobs"]
                   for rank in job["ranks"]) >= count:
                return
            assert time.monotonic() < deadline, (status, self.ranks_log())
            time.sleep(0.05)

    def end(self):
        self.keeper.send_signal(signal.SIGTERM)
        return self.keeper.wait(PATIENCE_S)

    def ranks(self, steps=5):
        """Starts the example job's launcher, which ends with the job. The
        launcher's output goes to the file `said`."""
        job = of_kind("job.yaml", "Job")["spec"]["template"]["spec"]
        [ranks] = job["containers"]
        script = of_kind("job.yaml", "ConfigMap")["data"]["train.py"]
        assert "range(5)" in script
        with open(self.folder + "/train.py", "w", encoding="ascii") as file:
            file.write(script.replace("range(5)", f"range({steps})"))
        program, *arguments, path = ranks["command"]
        assert (program, path) == ("torchrun", "/example/train.py")
        [socket] = [e["value"] for e in ranks["env"]
                    if e["name"] == "SLUICE_SOCKET"]
        with open(self.said, "w", encoding="utf-8") as said:
            return subprocess.Popen(
                [TORCH, "-m", "torch.distributed.run", *arguments,
                 self.folder + "/train.py"], stdin=subprocess.DEVNULL,
                stdout=said, stderr=said, env=dict(
                    os.environ, SLUICE_SOCKET=self.folder + socket,
                    SLUICE_BIN_DIR=BUILD + "/bin", OMP_NUM_THREADS="1",
                    TMPDIR=self.folder, PYTHONPATH=ROOT + "/client/python"))

    def ranks_log(self):
        with open(self.said, encoding="utf-8") as file:
            return file.read()

    def losses(self):
        """Returns the losses of each of the two ranks so far."""
        said = self.ranks_log()
        return [[float(x) for x in re.findall(
            rf"rank {rank} step \d+: loss (\d+\.\d\d\d\d)", said)]
            for rank in (0, 1)]
