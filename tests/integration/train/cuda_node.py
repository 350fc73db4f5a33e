"""A node with the driver cuda, for whole runs of sluice-train: the real
sluiced and the real trainer on the strict fake driver (tests/fake_cuda). This
proves nothing about a GPU."""

import os
import re
from unittest import mock

import harness

FAKES = os.environ["SLUICE_FAKE_CUDA_DIR"]

CONFIG = os.path.join(os.path.dirname(__file__),
                      "../../fake_cuda/node.toml")

METHODS = ("keep-all", "recompute", "alst", "sluice")
# Limit of the relative difference between losses in bf16: a quarter of bf16's
# machine epsilon, 2 ** -7.
BF16 = 2 ** -9


class CudaTest(harness.TrainTest):
    # Folders from which a run loads its CUDA and torch libraries.
    libraries = [FAKES]

    def setUp(self):
        super().setUp()
        self.node = self.path("node")
        os.mkdir(self.node)

    def on_the_fakes(self, libraries=(FAKES,), settings="", **more):
        """Makes programs run on the fakes. `settings` is appended to
        SLUICE_FAKE_CUDA."""
        return mock.patch.dict(os.environ, {
            "LD_LIBRARY_PATH": ":".join(libraries), "OMP_NUM_THREADS": "1",
            # A small workspace, so that leases may be small.
            "CUBLAS_WORKSPACE_CONFIG": ":1024:1",
            "SLUICE_FAKE_CUDA": "gpus=2,host_numa=0,pageable=0,counts=1,"
                                f"cublas=1,node={self.node}" + settings,
            **more})

    def configure(self, name="cuda", **settings):
        if name != "cuda":
            return super().configure(name=name, **settings)
        runtime = self.path(name)
        os.mkdir(runtime, 0o700)
        return runtime, CONFIG

    def cuda_daemon(self):
        with self.on_the_fakes():
            return self.daemon()

    # torch's libraries load NVIDIA's runtime by their own path unless a runtime
    # is already loaded.
    def on_cuda(self, run, *arguments, settings="", **options):
        with self.on_the_fakes(
                self.libraries, settings,
                LD_PRELOAD=os.path.join(FAKES, "libcudart.so.13")):
            return run(*arguments, **options)

    def both(self, socket, steps, *flags):
        """Returns the largest relative difference of the losses from those of
        the same run on a simulated node."""
        flags = [*flags, "--steps", str(steps)]
        sim = self.train(*flags, "--private")
        cuda = self.on_cuda(self.train, *flags, "--socket", socket,
                            "--device", "cuda")
        self.assertEqual(len(sim["losses"]), steps)
        self.assertEqual(len(cuda["losses"]), steps)
        self.assertEqual(cuda["plan"]["mismatches"], 0)
        apart = max(abs(ours / theirs - 1) for ours, theirs in
                    zip(cuda["losses"], sim["losses"]))
        print(f"losses of {' '.join(flags)}: {apart:.1e} apart")
        return apart

    def said_at_end(self, of, ranks=1):
        """Returns the value of `of`, such as "main_waits", in the line of each
        of the last `ranks` processes of the node's file `counts` (world.h)."""
        with open(os.path.join(self.node, "counts"), encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("sluice-train ")]
        return [re.search(rf"\b{of}=(\S*)", line)[1]
                for line in lines[-ranks:]]

    def expect_few_waits(self, *flags, ranks=1):
        """Checks that a step makes the host wait at most three times, on every
        rank. This takes many steps, because the number of waits for the stage
        varies while the first weights pass through it."""
        socket = self.cuda_daemon()
        for method in ("alst", "sluice"):
            waits = []
            for steps in (2, 22):
                self.on_cuda(self.train, *flags, "--steps", str(steps),
                             "--method", method, "--socket", socket)
                waits.append(max(
                    int(n) for n in self.said_at_end("main_waits", ranks)))
            per_step = (waits[1] - waits[0]) / 20
            print(f"host waits per step of {method} on {ranks} ranks: "
                  f"{per_step:.2f}")
            # At least the wait for the loss.
            self.assertGreaterEqual(per_step, 1)
            self.assertLessEqual(per_step, 3)
        self.expect_no_findings()

    def expect_no_findings(self):
        findings = os.path.join(self.node, "findings")
        if os.path.exists(findings):
            with open(findings, encoding="utf-8") as file:
                self.assertEqual(file.read(), "")
