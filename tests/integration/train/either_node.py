"""Whole runs on one of two kinds of node, chosen by the environment: simulated
GPUs, or, with SLUICE_FAKE_CUDA_DIR, the real sluiced and the real trainer on
the strict fake driver (tests/fake_cuda). Findings of that driver fail the
test, too. This proves nothing about a GPU."""

import os

import harness

FAKES = os.environ.get("SLUICE_FAKE_CUDA_DIR", "")
ON_FAKES = bool(FAKES)
# The size of a GPU's stage, which a rank holds in addition to its step's host
# memory.
STAGE_BYTES = 4 * 2**20 if ON_FAKES else 0

CONFIG = """\
[device]
driver = "cuda"
[gpus]
access = "any"
[pools]
gpu_bytes = "{gpu_memory}"
host_bytes = "{host_memory}"
extent_bytes = "{extent}"
""" + harness.ALONE


class FakeNodeTest(harness.TrainTest):
    """Each daemon has its own fake node, with the GPUs that configure() was
    asked for. A program uses the node of the daemon that its command names."""

    # Size of the extents of leases. Memory that a living rank returned is
    # leased again in the same extents, so a test in which jobs pass memory to
    # each other needs extents that are small compared to its leases.
    extent = "4MiB"

    def setUp(self):
        super().setUp()
        self.nodes = {}  # runtime directory -> settings of the fake driver
        self.private = None
        # Runs after all processes have ended, because clean-ups run in reverse
        # order.
        self.addCleanup(self.expect_no_findings)

    def configure(self, gpus=2, gpu_memory="64MiB", host_memory="256MiB",
                  sim="", extra="", name="run"):
        self.assertEqual(sim, "", "the fakes have no such table")
        runtime = self.path(name)
        os.mkdir(runtime, 0o700)
        node = self.path(f"node{len(os.listdir(self.folder))}")
        os.mkdir(node)
        self.nodes[runtime] = (
            f"gpus={gpus},memory_mib=256,"
            # As on simulated GPUs: tests expect pieces of this size.
            "gpu_granularity_kib=64,host_granularity_kib=64,"
            f"pageable=0,cublas=1,node={node}")
        config = self.path(name + ".toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(gpu_memory=gpu_memory,
                                     host_memory=host_memory,
                                     extent=self.extent) + extra)
        return runtime, config

    def node_of(self, command):
        """Returns the fake driver's settings for a command, by the runtime
        directory that it names."""
        for word in command:
            for runtime, played in self.nodes.items():
                if word in (runtime, os.path.join(runtime, "session.sock")):
                    return played
        self.fail(f"{command} names no daemon of this test")

    def start(self, command, variables=None, **options):
        fakes = {
            "LD_LIBRARY_PATH": f"{FAKES}/over_real:{FAKES}",
            "OMP_NUM_THREADS": "1",
            # A small workspace, so that leases may be small.
            "CUBLAS_WORKSPACE_CONFIG": ":1024:1",
            "SLUICE_FAKE_CUDA": self.node_of(command)}
        if command[0] == harness.TRAIN:
            # torch's libraries load NVIDIA's runtime by their own path unless
            # a runtime is already loaded.
            fakes["LD_PRELOAD"] = os.path.join(FAKES, "libcudart.so.13")
        return super().start(command, {**fakes, **(variables or {})},
                             **options)

    def run_train(self, *arguments, command="train", **options):
        """Starts a daemon on the fakes for a run with --private, because a
        private daemon has simulated GPUs."""
        given = [word for word in arguments if word != "--private"]
        if "--socket" not in given:
            given += ["--socket", self.private_socket()]
        return super().run_train(*given, command=command, **options)

    def private_socket(self):
        if self.private is None:
            of_test = getattr(self, "sluiced", None)
            self.private = self.daemon(name="private", gpus=4,
                                       gpu_memory="192MiB",
                                       host_memory="1GiB")
            self.sluiced = of_test
        return self.private

    def expect_no_findings(self):
        for played in self.nodes.values():
            findings = os.path.join(played.partition("node=")[2], "findings")
            if os.path.exists(findings):
                with open(findings, encoding="utf-8") as file:
                    self.assertEqual(file.read(), "")


NodeTest = FakeNodeTest if ON_FAKES else harness.TrainTest
