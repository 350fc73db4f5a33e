#!/usr/bin/env python3
"""The manifests of deploy/kubernetes: kubernetes_test.py BUILD

They match the schemas of Kubernetes and of the Prometheus operator, each
other, and the programs. Their job runs on simulated GPUs, also while the
daemon is replaced as daemon.yaml does it. Runs in the environment of
deploy/setup/kubernetes.txt, which has the schemas.
"""

import filecmp
import os
import re
import shutil
import sys
import tempfile
import time
import unittest

import installed
import kubernetes_validate
import manifests
from cloudcoil.models.prometheus_operator import v1 as operator
from manifests import BUILD, container, documents, of_kind

VERSIONS = "1.29", "1.37"  # oldest and newest Kubernetes that are tried
OTHERS = "monitoring.coreos.com/v1", "kustomize.config.k8s.io/v1beta1"
IMAGES = (("node.yaml", "containers"), ("daemon.yaml", "initContainers"),
          ("daemon.yaml", "containers"))


def as_read(document):
    """Returns the fields of the document that the operator's schema knows."""
    return getattr(operator, document["kind"]).model_validate(
        document).model_dump(mode="json", by_alias=True, exclude_unset=True)


def host_paths(pod, of="containers"):
    """Returns the container's mounts from the node: path in the container ->
    (path on the node, whether it is read-only)."""
    paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"]
             if "hostPath" in v}
    [found] = pod[of]
    return {m["mountPath"]: (paths[m["name"]], m.get("readOnly", False))
            for m in found["volumeMounts"] if m["name"] in paths}


class Manifests(unittest.TestCase):

    def test_manifests_match_the_schemas_of_kubernetes(self):
        seen = 0
        for name in ("node.yaml", "daemon.yaml", "monitor.yaml",
                     "job.yaml"):
            for document in documents(name):
                if document["apiVersion"] in OTHERS:
                    continue
                for version in VERSIONS:
                    kubernetes_validate.validate(document, version,
                                                 strict=True)
                seen += 1
        self.assertEqual(seen, 7)

    def test_a_wrong_field_is_found(self):
        wrong = of_kind("node.yaml", "DaemonSet")
        wrong["spec"]["template"]["spec"]["hostPid"] = True
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)

    def test_the_monitor_matches_the_operators_schema(self):
        monitor = of_kind("monitor.yaml", "ServiceMonitor")
        self.assertEqual(as_read(monitor), monitor)
        monitor["spec"]["endpoints"][0]["ports"] = "http"
        self.assertNotEqual(as_read(monitor), monitor)

    def test_the_alerts_are_those_of_prometheus(self):
        rule = of_kind("alerts.yaml", "PrometheusRule")
        self.assertEqual(as_read(rule), rule)
        rule["spec"]["groups"][0]["rules"][0]["expression"] = "1"
        self.assertNotEqual(as_read(rule), rule)
        with open(manifests.FOLDER + "/alerts.yaml", encoding="utf-8") as file:
            self.assertEqual(installed.run(manifests.FOLDER + "/alerts.sh"),
                             file.read(), "run deploy/kubernetes/alerts.sh")
        [whole] = manifests.documents("../prometheus/alerts.yaml")
        self.assertEqual(of_kind("alerts.yaml", "PrometheusRule")["spec"],
                         whole)
        # The rules select the job "sluice", which is the Service's name.
        self.assertEqual(of_kind("monitor.yaml", "Service")["metadata"]["name"],
                         "sluice")

    def test_the_namespace_admits_its_pods(self):
        labels = of_kind("node.yaml", "Namespace")["metadata"]["labels"]
        self.assertEqual(labels["pod-security.kubernetes.io/enforce"],
                         "privileged")

    def test_a_rank_mounts_only_the_session_folder(self):
        args = container("node.yaml")["args"]
        private = args[args.index("--runtime-dir") + 1]
        sessions = args[args.index("--session-dir") + 1]
        job = of_kind("job.yaml", "Job")["spec"]["template"]["spec"]
        self.assertEqual(host_paths(job), {sessions: (sessions, True)})
        node = of_kind("node.yaml", "DaemonSet")["spec"]["template"]["spec"]
        for path in private, sessions:
            self.assertEqual(host_paths(node)[path], (path, False))
        other = of_kind("daemon.yaml", "DaemonSet")["spec"]["template"]["spec"]
        for of in "initContainers", "containers":
            self.assertIn(private, host_paths(other, of))

    def test_names_agree_between_manifests(self):
        pods = of_kind("node.yaml", "DaemonSet")["spec"]["template"]
        labels = pods["metadata"]["labels"]
        service = of_kind("monitor.yaml", "Service")
        monitor = of_kind("monitor.yaml", "ServiceMonitor")
        self.assertEqual(service["spec"]["selector"], labels)
        self.assertEqual(monitor["spec"]["selector"]["matchLabels"],
                         service["metadata"]["labels"])
        [port] = service["spec"]["ports"]
        [inside] = container("node.yaml")["ports"]
        self.assertEqual(port["targetPort"], inside["name"])
        self.assertEqual(monitor["spec"]["endpoints"][0]["port"], port["name"])
        config = of_kind("node.yaml", "ConfigMap")["data"]["sluiced.toml"]
        self.assertIn(f":{inside['containerPort']}\"", config)
        self.assertEqual(set(documents("kustomization.yaml")[0]["resources"]),
                         {"node.yaml", "daemon.yaml", "monitor.yaml",
                          "alerts.yaml"})
        [script] = documents("kustomization.yaml")[0]["configMapGenerator"]
        volumes = of_kind("daemon.yaml", "DaemonSet")["spec"]["template"][
            "spec"]["volumes"]
        self.assertIn({"name": "upgrade", "configMap": {
            "name": script["name"]}}, volumes)

    def test_the_init_container_installs_what_the_keeper_starts(self):
        args = container("node.yaml")["args"]
        started = args[args.index("--program") + 1]
        _, _, _, to, *rest = container("daemon.yaml",
                                       "initContainers")["command"]
        self.assertEqual(started, to + "/sluiced")
        self.assertEqual(sorted(rest), sorted(
            args[:2] + args[args.index("--") + 1:]))

    def test_the_image_is_of_this_version(self):
        said = installed.run(BUILD + "/bin/sluiced", "--version")
        version = re.search(r"\d+\.\d+\.\d+", said)[0]
        for name, of in IMAGES:
            self.assertEqual(container(name, of)["image"], "sluice:" + version)
        [image] = documents("kustomization.yaml")[0]["images"]
        self.assertEqual(image["newTag"], version)

    def test_a_changed_manifest_ends_no_job(self):
        found = of_kind("node.yaml", "DaemonSet")["spec"]
        self.assertEqual(found["updateStrategy"], {"type": "OnDelete"})
        self.assertNotIn("livenessProbe", container("node.yaml"))
        self.assertNotIn("limits", container("node.yaml")["resources"])


class OnANode(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.node = manifests.Node(folder.name)
        self.checked(self.node.upgrade(self.image("sluiced")))
        self.node.start()
        self.addCleanup(lambda: self.assertEqual(self.node.end(), 0,
                                                 self.node.log()))
        self.node.wait_until_it_serves()

    def image(self, sluiced):
        """Makes a folder with the contents of the image's /usr/bin, in which
        the daemon is the build's program named by `sluiced`."""
        folder = f"{self.node.folder}/image-of-{sluiced}"
        os.makedirs(folder)
        shutil.copy(f"{BUILD}/bin/{sluiced}", folder + "/sluiced")
        for other in "sluice-worker", "sluicectl":
            shutil.copy(f"{BUILD}/bin/{other}", folder)
        return folder

    def checked(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def calm(self, steps):
        """Returns the losses of an undisturbed job."""
        ranks = self.node.ranks(steps)
        self.addCleanup(ranks.kill)
        self.assertEqual(ranks.wait(timeout=500), 0, self.node.ranks_log())
        found = self.node.losses()
        for of_rank in found:
            self.assertEqual(len(of_rank), steps)
            self.assertLess(of_rank[-1], of_rank[0])
        return found

    def endless_job(self):
        """Starts ranks that hold leases and run until the test ends."""
        ranks = self.node.ranks(steps=100000)
        self.addCleanup(ranks.wait, timeout=manifests.PATIENCE_S)
        self.addCleanup(ranks.terminate)
        self.node.wait_for_ranks(2)
        return ranks

    def go_on(self, ranks):
        """Waits until each rank has made ten more steps."""
        before = [len(of_rank) for of_rank in self.node.losses()]
        deadline = time.monotonic() + manifests.PATIENCE_S
        while any(len(now) < then + 10
                  for now, then in zip(self.node.losses(), before)):
            self.assertIsNone(ranks.poll(), self.node.ranks_log())
            self.assertLess(time.monotonic(), deadline, self.node.ranks_log())
            time.sleep(0.05)

    def test_a_rank_finds_nothing_to_administer_or_lock(self):
        self.assertEqual(sorted(os.listdir(self.node.folder + "/run/sluice")),
                         ["session.sock", "sim"])

    @unittest.skipIf(os.geteuid() != 0, "the rank must be root")
    def test_a_rank_that_is_root_can_only_connect(self):
        """The session folder is mounted as job.yaml mounts it."""
        folder = self.node.folder + "/run/sluice"
        inside = (f"mount --bind {folder} {folder} && "
                  f"mount -o remount,bind,ro {folder} && "
                  f"! chmod 0 {folder}/session.sock && "
                  f"! rm {folder}/session.sock && "
                  f"! {BUILD}/bin/sluicectl --socket {folder}/session.sock "
                  "--admin drain && "
                  f"{BUILD}/bin/sluicectl --socket {folder}/session.sock "
                  "status")
        self.assertIn("driver sim", installed.run(
            "unshare", "--mount", "sh", "-c", inside))

    def test_an_upgrade_without_an_admin_socket_changes_nothing(self):
        os.rename(self.node.folder + "/run/sluice-admin/admin.sock",
                  self.node.folder + "/run/sluice/admin.sock")
        done = self.node.upgrade(self.image("sluiced-next"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("delete the keeper's pod", done.stderr)
        self.assertEqual(sorted(os.listdir(self.node.folder + "/opt/sluice")),
                         ["sluice-worker", "sluiced"])

    def test_the_daemon_accepts_the_configuration(self):
        args = manifests.below(self.node.folder, container("node.yaml")["args"])
        installed.run(BUILD + "/bin/sluiced", *args[args.index("--") + 1:],
                      "--driver", "sim", "--runtime-dir",
                      self.node.folder + "/run/new", "--check-config")

    @unittest.skipIf(os.geteuid() != 0, "chroot needs root")
    def test_the_job_runs_on_while_the_daemon_is_replaced(self):
        ranks = self.endless_job()
        said = self.checked(self.node.upgrade(self.image("sluiced-next")))
        self.assertIn("took over", said)
        self.go_on(ranks)
        ranks.terminate()
        ranks.wait(timeout=manifests.PATIENCE_S)
        losses = self.node.losses()
        steps = min(map(len, losses))
        self.assertEqual([of_rank[:steps] for of_rank in losses],
                         self.calm(steps))
        self.assertTrue(filecmp.cmp(BUILD + "/bin/sluiced-next",
                                    self.node.folder + "/opt/sluice/sluiced",
                                    shallow=False))
        again = self.checked(self.node.upgrade(
            self.node.folder + "/image-of-sluiced-next"))
        self.assertIn("already", again)

    @unittest.skipIf(os.geteuid() != 0, "chroot needs root")
    def test_a_daemon_that_cannot_take_over_changes_nothing(self):
        # sluiced cannot read the state that sluiced-far writes.
        self.checked(self.node.upgrade(self.image("sluiced-far")))
        starts = self.node.log().count("ready")
        done = self.node.upgrade(self.node.folder + "/image-of-sluiced")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("was not replaced", done.stderr)
        self.assertEqual(sorted(os.listdir(self.node.folder + "/opt/sluice")),
                         ["sluice-worker", "sluiced"])
        self.assertTrue(filecmp.cmp(BUILD + "/bin/sluiced-far",
                                    self.node.folder + "/opt/sluice/sluiced",
                                    shallow=False))
        self.assertEqual(self.node.log().count("ready"), starts)

    @unittest.skipIf(os.geteuid() != 0, "chroot needs root")
    def test_an_upgrade_to_a_frozen_daemon_fails(self):
        ranks = self.endless_job()
        # The new daemon passes the check but dies while it starts. The daemon
        # that is started next is frozen.
        self.node.append("[restart]\nfreeze_after = 1\n")
        self.node.crash_at("core-loaded")
        image = self.image("crashing-sluiced")
        for _ in range(2):  # a kubelet tries again
            done = self.node.upgrade(image)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("sluiced is frozen", done.stderr)
        said = self.checked(self.node.upgrade(self.image("sluiced-next")))
        self.assertIn("took over", said)
        self.go_on(ranks)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
