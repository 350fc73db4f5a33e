"""Whole runs on either kind of node, by the environment: simulated GPUs, or,
with SLUICE_FAKE_CUDA_DIR, the real sluiced and the real trainer on the strict
fake driver (tests/fake_cuda). That driver's findings then judge the run, too.
It proves nothing about a GPU."""

import os

import harness

FAKES = os.environ.get("SLUICE_FAKE_CUDA_DIR", "")
ON_FAKES = bool(FAKES)
# What a rank holds of host memory beside its step: a GPU's stage.
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
    """Each daemon has a node of its own, of the GPUs that it was started with;
    a program is on the node of the daemon that its command names."""

    # What leases are cut into. Memory that a living rank gave back is leased
    # again as it was cut: a test in which jobs pass some on to each other has
    # pieces as small beside its leases as a large node has.
    extent = "4MiB"

    def setUp(self):
        super().setUp()
        self.nodes = {}  # runtime directory -> what the fake driver plays
        self.private = None
        # Only once all processes have ended: clean-ups are last come first.
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
            # As simulated: tests tell pieces of so much.
            "gpu_granularity_kib=64,host_granularity_kib=64,"
            f"pageable=0,cublas=1,node={node}")
        config = self.path(name + ".toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(gpu_memory=gpu_memory,
                                     host_memory=host_memory,
                                     extent=self.extent) + extra)
        return runtime, config

    def node_of(self, command):
        """What is played to that command: by the folder that it names."""
        for word in command:
            for runtime, played in self.nodes.items():
                if word in (runtime, os.path.join(runtime, "session.sock")):
                    return played
        self.fail(f"{command} names no daemon of this test")

    def start(self, command, variables=None, **options):
        fakes = {
            "LD_LIBRARY_PATH": f"{FAKES}/over_real:{FAKES}",
            "OMP_NUM_THREADS": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":1024:1",  # for small leases
            "SLUICE_FAKE_CUDA": self.node_of(command)}
        if command[0] == harness.TRAIN:
            # torch's libraries take NVIDIA's runtime by a path of their own,
            # but not where one is loaded already.
            fakes["LD_PRELOAD"] = os.path.join(FAKES, "libcudart.so.13")
        return super().start(command, {**fakes, **(variables or {})},
                             **options)

    def run_train(self, *arguments, command="train", **options):
        """A private daemon has simulated GPUs: here one beside the others."""
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
