"""All methods have the same losses on any number of ranks."""

import unittest

import harness

FLAGS = (f"--seq-len 333 --steps {harness.PARITY_STEPS} --lr 1e-3 --warmup 10 "
         "--clip 1 --beta1 .9 --beta2 .95 --private").split()
# Least decrease of the loss by the last step.
LEARNED = 1 if harness.WHOLE else 0.3


class Parity(harness.TrainTest):
    def assert_same_losses(self, expected, got, what):
        self.assertEqual(len(expected), len(got), what)
        self.assertLessEqual(abs(expected[0] - got[0]), 1e-5, what)
        worst = max(abs(a - b) for a, b in zip(expected, got))
        self.assertLessEqual(worst, 1e-3, what)

    def test_every_method_and_rank_count_gives_the_same_losses(self):
        for arch in ("llama", "gpt"):
            expected = None
            for ranks in ("1", "2", "4"):
                for method in ("keep-all", "recompute", "alst", "sluice"):
                    what = f"{arch}, {method}, {ranks} ranks"
                    result = self.train(*FLAGS, "--arch", arch, "--method",
                                        method, "--ranks", ranks)
                    losses = result["losses"]
                    expected = expected or losses
                    self.assert_same_losses(expected, losses, what)
                    self.assertLess(losses[-1], losses[0] - LEARNED, what)
                    self.assertEqual(result["plan"]["mismatches"], 0, what)

    def test_ranks_that_share_a_gpu_learn_what_ranks_apart_do(self):
        socket = self.daemon(gpus=1)
        flags = "--seq-len 333 --steps 5 --ranks 2".split()
        shared = self.train(*flags, "--socket", socket)
        apart = self.train(*flags, "--private")
        self.assertEqual(shared["losses"], apart["losses"])
        self.assertLessEqual(shared["hbm_bytes_per_gpu"], 32 * 2**20)


if __name__ == "__main__":
    unittest.main()
