"""On fake GPUs (tests/fake_cuda) all methods have the losses of a simulated
node, for many steps: with one rank, and with two over torch's own
ProcessGroupNCCL. This proves nothing about a GPU."""

import os
import unittest

import cuda_node
import harness

FLAGS = ("--seq-len 333 --lr 1e-3 --warmup 10 --clip 1 --beta1 .9 --beta2 .95 "
         "--hbm 16MiB").split()


class CudaParity(cuda_node.CudaTest):
    # torch's own library, with CPU implementations of its kernels.
    libraries = [os.path.join(cuda_node.FAKES, "over_real"), cuda_node.FAKES]

    def test_every_method_learns_what_it_learns_on_a_simulated_node(self):
        socket = self.cuda_daemon()
        for arch, ranks in (("llama", "2"), ("gpt", "1")):
            for method in cuda_node.METHODS:
                apart = self.both(socket, harness.PARITY_STEPS, *FLAGS,
                                  "--arch", arch, "--ranks", ranks, "--method",
                                  method)
                self.assertLessEqual(apart, 1e-6, (arch, ranks, method))
        self.expect_no_findings()

    def test_losses_in_bf16_agree_within_its_precision(self):
        socket = self.cuda_daemon()
        for arch, ranks, method in (("llama", "2", "sluice"),
                                    ("gpt", "1", "recompute")):
            apart = self.both(socket, harness.PARITY_STEPS, *FLAGS, "--arch",
                              arch, "--ranks", ranks, "--method", method,
                              "--dtype", "bf16")
            self.assertLessEqual(apart, cuda_node.BF16, (arch, ranks, method))
        self.expect_no_findings()


if __name__ == "__main__":
    unittest.main()
