#!/usr/bin/env python3
"""The manifests of deploy/kubernetes: kubernetes_test.py BUILD

Against the schemas of Kubernetes and of the Prometheus operator, against each
other and the programs; and their job on simulated GPUs. Runs itself again in
the environment of deploy/setup/kubernetes.txt, which has the schemas.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import installed

DEPS = os.environ.get("SLUICE_DEPS", os.path.expanduser("~/.cache/sluice"))
SCHEMAS = DEPS + "/kubernetes/bin/python"
TORCH = DEPS + "/venv/bin/python"
if sys.executable != SCHEMAS:
    os.execv(SCHEMAS, [SCHEMAS, *sys.argv])

import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402
from cloudcoil.models.prometheus_operator import v1 as operator  # noqa: E402

BUILD = os.path.abspath(sys.argv.pop())
ROOT = os.path.dirname(os.path.dirname(installed.HERE))
FOLDER = ROOT + "/deploy/kubernetes"
VERSIONS = "1.29", "1.37"  # oldest that is tried, newest
OTHERS = "monitoring.coreos.com/v1", "kustomize.config.k8s.io/v1beta1"


def documents(name):
    with open(f"{FOLDER}/{name}", encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def of_kind(name, kind):
    [found] = [d for d in documents(name) if d["kind"] == kind]
    return found


def as_read(monitor):
    """What of it the operator's schema knows."""
    return operator.ServiceMonitor.model_validate(monitor).model_dump(
        mode="json", by_alias=True, exclude_unset=True)


class Manifests(unittest.TestCase):

    def test_are_what_kubernetes_takes(self):
        seen = 0
        for name in "node.yaml", "monitor.yaml", "job.yaml":
            for document in documents(name):
                if document["apiVersion"] in OTHERS:
                    continue
                for version in VERSIONS:
                    kubernetes_validate.validate(document, version,
                                                 strict=True)
                seen += 1
        self.assertEqual(seen, 6)

    def test_a_wrong_field_would_be_found(self):
        wrong = of_kind("node.yaml", "DaemonSet")
        wrong["spec"]["template"]["spec"]["hostPid"] = True
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)

    def test_the_monitor_is_what_the_operator_takes(self):
        monitor = of_kind("monitor.yaml", "ServiceMonitor")
        self.assertEqual(as_read(monitor), monitor)
        monitor["spec"]["endpoints"][0]["ports"] = "http"
        self.assertNotEqual(as_read(monitor), monitor)

    def test_names_meet(self):
        pods = of_kind("node.yaml", "DaemonSet")["spec"]["template"]
        labels = pods["metadata"]["labels"]
        service = of_kind("monitor.yaml", "Service")
        monitor = of_kind("monitor.yaml", "ServiceMonitor")
        self.assertEqual(service["spec"]["selector"], labels)
        self.assertEqual(monitor["spec"]["selector"]["matchLabels"],
                         service["metadata"]["labels"])
        [port] = service["spec"]["ports"]
        [inside] = pods["spec"]["containers"][0]["ports"]
        self.assertEqual(port["targetPort"], inside["name"])
        self.assertEqual(monitor["spec"]["endpoints"][0]["port"], port["name"])
        config = of_kind("node.yaml", "ConfigMap")["data"]["sluiced.toml"]
        self.assertIn(f":{inside['containerPort']}\"", config)
        self.assertEqual(set(documents("kustomization.yaml")[0]["resources"]),
                         {"node.yaml", "monitor.yaml"})

    def test_the_image_is_of_this_version(self):
        said = installed.run(BUILD + "/bin/sluiced", "--version")
        version = re.search(r"\d+\.\d+\.\d+", said)[0]
        container = of_kind("node.yaml", "DaemonSet")["spec"]["template"][
            "spec"]["containers"][0]
        self.assertEqual(container["image"], "sluice:" + version)
        [image] = documents("kustomization.yaml")[0]["images"]
        self.assertEqual(image["newTag"], version)

    def test_a_changed_manifest_ends_no_job(self):
        found = of_kind("node.yaml", "DaemonSet")["spec"]
        self.assertEqual(found["updateStrategy"], {"type": "OnDelete"})
        [container] = found["template"]["spec"]["containers"]
        self.assertNotIn("livenessProbe", container)
        self.assertNotIn("limits", container["resources"])

    def test_the_job_runs_on_what_the_daemon_set_starts(self):
        with tempfile.TemporaryDirectory() as folder:
            keeper = subprocess.Popen(
                [BUILD + "/bin/sluiced-keeper", *self.arguments(folder),
                 "--driver", "sim"], stderr=subprocess.PIPE, text=True)
            try:
                self.wait_for(folder + "/run/sluice/session.sock", keeper)
                said = self.ranks(folder)
            finally:
                keeper.send_signal(signal.SIGTERM)
                errors = keeper.communicate(timeout=30)[1]
            self.assertEqual(keeper.returncode, 0, errors)
        for rank in 0, 1:
            losses = [float(x) for x in re.findall(
                rf"rank {rank} step \d: loss (\d+\.\d\d\d\d)", said)]
            self.assertEqual(len(losses), 5, said)
            self.assertLess(losses[-1], losses[0])

    def arguments(self, folder):
        """The container's, on folders below `folder`, any port, and with the
        configuration checked."""
        config = of_kind("node.yaml", "ConfigMap")["data"]["sluiced.toml"]
        for name in "run/sluice", "etc/sluice":
            os.makedirs(f"{folder}/{name}")
        with open(folder + "/etc/sluice/sluiced.toml", "w",
                  encoding="ascii") as file:
            file.write(config.replace(":9435", ":0").replace(
                "nobody", "nobody" if os.getuid() == 0 else "") +
                '[sim]\ngpu_memory = "64MiB"\nhost_memory = "256MiB"\n')
        container = of_kind("node.yaml", "DaemonSet")["spec"]["template"][
            "spec"]["containers"][0]
        found = [folder + a if a.startswith("/") else a
                 for a in container["args"]]
        installed.run(BUILD + "/bin/sluiced", *found[found.index("--") + 1:],
                      "--driver", "sim", "--runtime-dir", folder + "/run/new",
                      "--check-config")
        return found

    def wait_for(self, path, keeper):
        deadline = time.monotonic() + 30
        while not os.path.exists(path):
            self.assertIsNone(keeper.poll(), "the keeper ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def ranks(self, folder):
        job = of_kind("job.yaml", "Job")["spec"]["template"]["spec"]
        [container] = job["containers"]
        script = of_kind("job.yaml", "ConfigMap")["data"]["train.py"]
        with open(folder + "/train.py", "w", encoding="ascii") as file:
            file.write(script)
        program, *arguments, path = container["command"]
        self.assertEqual((program, path), ("torchrun", "/example/train.py"))
        [socket] = [e["value"] for e in container["env"]
                    if e["name"] == "SLUICE_SOCKET"]
        return installed.run(
            TORCH, "-m", "torch.distributed.run", *arguments,
            folder + "/train.py", env=dict(
                os.environ, SLUICE_SOCKET=folder + socket,
                SLUICE_BIN_DIR=BUILD + "/bin", OMP_NUM_THREADS="1", TMPDIR=folder,
                PYTHONPATH=ROOT + "/client/python"))


if __name__ == "__main__":
    unittest.main()
