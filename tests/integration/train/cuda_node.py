"""A node whose driver is cuda, for whole runs of sluice-train: the real sluiced
and the real trainer on the strict fake driver (tests/fake_cuda). It proves
nothing about a GPU."""

import os
from unittest import mock

import harness

FAKES = os.environ["SLUICE_FAKE_CUDA_DIR"]

CONFIG = os.path.join(os.path.dirname(__file__),
                      "../../fake_cuda/node.toml")


class CudaTest(harness.TrainTest):
    # Folders of the libraries that a run takes for CUDA's and torch's.
    libraries = [FAKES]

    def setUp(self):
        super().setUp()
        self.node = self.path("node")
        os.mkdir(self.node)

    def on_the_fakes(self, libraries=(FAKES,), settings="", **more):
        """`settings`: more of SLUICE_FAKE_CUDA."""
        return mock.patch.dict(os.environ, {
            "LD_LIBRARY_PATH": ":".join(libraries), "OMP_NUM_THREADS": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":1024:1",  # for small leases
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

    # torch's libraries take NVIDIA's runtime by a path of their own, but not
    # where one is loaded already.
    def on_cuda(self, run, *arguments, settings="", **options):
        with self.on_the_fakes(
                self.libraries, settings,
                LD_PRELOAD=os.path.join(FAKES, "libcudart.so.13")):
            return run(*arguments, **options)

    def both(self, socket, steps, *flags):
        """How far losses are from those of the same run on a simulated node."""
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

    def expect_no_findings(self):
        findings = os.path.join(self.node, "findings")
        if os.path.exists(findings):
            with open(findings, encoding="utf-8") as file:
                self.assertEqual(file.read(), "")
