"""Ranks on GPUs of one node: the real sluiced and the real trainer over torch's
own ProcessGroupNCCL, on the fake driver, runtime and NCCL (tests/fake_cuda).
As within a node, that NCCL tells no rank of another's death. It proves nothing
about a GPU."""

import os
import unittest
from unittest import mock

import cuda_node
import harness

RUN = "--ranks 2 --seq-len 200 --hbm 16MiB".split()


class CudaRanks(cuda_node.CudaTest):
    # torch's own library, with CPU forms of its kernels.
    libraries = [os.path.join(cuda_node.FAKES, "over_real"), cuda_node.FAKES]

    def setUp(self):
        super().setUp()
        silent = mock.patch.dict(os.environ, SLUICE_FAKE_NCCL="silent=1")
        silent.start()
        self.addCleanup(silent.stop)

    def test_losses_are_those_of_a_simulated_node_over_gloo(self):
        sim = self.train(*RUN, "--steps", "3", "--private")
        cuda = self.on_cuda(self.train, *RUN, "--steps", "3", "--socket",
                            self.cuda_daemon(), "--device", "cuda")
        self.assertEqual(len(cuda["losses"]), 3)
        for ours, theirs in zip(cuda["losses"], sim["losses"]):
            self.assertAlmostEqual(ours, theirs, delta=1e-6 * theirs)
        self.assertEqual(cuda["plan"]["mismatches"], 0)
        self.expect_no_findings()


if __name__ == "__main__":
    unittest.main()
