"""Tests which GPU of the node a job uses, and how much of its memory."""

import json
import os
import subprocess
import unittest

import harness


class Gpu(harness.TrainTest):
    def leased_per_gpu(self, socket):
        answer = subprocess.run(
            [os.path.join(harness.BIN, "sluicectl"), "--socket", socket,
             "status", "--json"], capture_output=True, text=True, check=True,
            env=harness.clean_environment())
        return [gpu["leased_bytes"] >> 20
                for gpu in json.loads(answer.stdout)["gpus"]]

    def start_job(self, socket, name, *more):
        log = self.path(name)
        run = self.start(
            [harness.TRAIN, "train", *harness.MODEL, "--seq-len", "300",
             "--steps", "100000", "--socket", socket, "--job", name, "--data",
             self.text, "--log-jsonl", log, *more], stderr=subprocess.PIPE)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 1,
                        f"{name} does not train")
        return run

    def test_jobs_of_one_rank_spread_over_the_gpus(self):
        socket = self.daemon(gpus=3, gpu_memory="64MiB")
        for i, leased in enumerate([[16, 0, 0], [16, 16, 0], [16, 16, 16]]):
            self.start_job(socket, f"job{i}", "--hbm", "16MiB")
            self.assertEqual(self.leased_per_gpu(socket), leased)

    def test_a_named_gpu_is_taken(self):
        socket = self.daemon(gpus=3, gpu_memory="64MiB")
        self.start_job(socket, "named", "--hbm", "16MiB", "--gpu", "2")
        self.assertEqual(self.leased_per_gpu(socket), [0, 0, 16])
        self.start_job(socket, "pair", "--hbm", "16MiB", "--gpu", "1,2",
                       "--ranks", "2")
        self.assertEqual(self.leased_per_gpu(socket), [0, 16, 32])

    def test_a_lease_without_a_size_is_what_others_leave(self):
        socket = self.daemon(gpus=1, gpu_memory="64MiB")
        self.start_job(socket, "first", "--hbm", "40MiB")
        second = self.start_job(socket, "second")
        self.assertEqual(self.leased_per_gpu(socket), [64])
        second.terminate()
        _, err = second.communicate(timeout=harness.PATIENCE_S)
        self.assertRegex(err, "GPU 0: 24 MiB of 64 MiB leased per rank "
                              r"\(all that was free for it; --hbm")

    def test_a_full_gpu_is_refused_by_name(self):
        socket = self.daemon(gpus=1, gpu_memory="32MiB")
        self.start_job(socket, "all")
        result = self.train("--socket", socket, "--seq-len", "300", status=3)
        self.assertEqual(result["limited_by"], "gpu_memory")
        self.assertIn("GPU 0 has 32 MiB, of which jobs hold 32 MiB",
                      result["message"])


if __name__ == "__main__":
    unittest.main()
