#!/usr/bin/env python3
"""bench-gpu runs every step with tiny sizes: the trainer on the fakes
(tests/fake_cuda), Python on the CPU. Its file is valid even if steps fail.
This proves nothing about a GPU."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import gpu

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ["SLUICE_BIN_DIR"]
FAKES = os.environ["SLUICE_FAKE_CUDA_DIR"]


class Gpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def dry_run(self, *words, fakes="gpus=1,host_numa=0,pageable=0,cublas=1"):
        """Returns (exit status, {row: value}, reasons of missing values)."""
        out = os.path.join(self.folder, "out.json")
        ended = subprocess.run(
            [sys.executable, os.path.join(HERE, "bench.py"), "--bin", BIN,
             "gpu", "--dry-run", "--json", out, *words], check=False,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "LD_LIBRARY_PATH": FAKES, "OMP_NUM_THREADS": "1",
                 # A small workspace of cuBLAS, so that leases may be small.
                 "CUBLAS_WORKSPACE_CONFIG": ":1024:1",
                 "LD_PRELOAD": os.path.join(FAKES, "libcudart.so.13"),
                 "SLUICE_FAKE_CUDA": f"{fakes},counts=1,node={self.folder}"})
        with open(out, encoding="utf-8") as file:
            entries = json.load(file)
        return (ended.returncode,
                {each["name"].partition(", ")[2]: each["value"]
                 for each in entries},
                [each["detail"] for each in entries if each["value"] is None])

    def test_every_step_has_its_rows(self):
        status, rows, failed = self.dry_run()
        self.assertEqual((status, failed), (0, []))
        for row in ("sluice-train, 64K tokens, alst",
                    "sluice-train, launches and calls per chunk",
                    "sluice-train, 256K tokens, sluice",
                    "sluice-train, 16K tokens, sluice",
                    "Python, 256 tokens, checkpointing, cuDNN, pinned inputs",
                    "Python, 256 tokens, sluice",
                    "Python, longest in 16 GiB, sluice",
                    "Python, documents of new lengths, auto",
                    "Python, host's share of a step, chunks of 64",
                    "pinned memory, lease of 64 MiB, again",
                    "pinned memory, memfd, 4 threads, huge pages"):
            self.assertGreater(rows[row], 0, row)
        self.assertFalse(
            os.path.exists(os.path.join(self.folder, "findings")))

    def test_a_failed_step_leaves_the_other_rows(self):
        status, rows, failed = self.dry_run("--call", "1",
                                            fakes="fail=cuInit:1:100")
        self.assertEqual((status, failed), (1, ["ended with status 1"]))
        self.assertIsNone(rows["sluice-train, 64K tokens"])
        self.assertGreater(rows["Python, 256 tokens, sluice"], 0)

    def test_the_steps_of_a_call_fit_in_its_time(self):
        for call in (1, 2, 3):
            steps = [each for each in gpu.STEPS if each.call == call]
            self.assertLessEqual(sum(each.expected_s for each in steps),
                                 gpu.CALL_S)
            self.assertLessEqual(gpu.CALL_S, 300)

    def test_a_step_over_its_limit_ends_with_a_row(self):
        arguments = gpu.argparse.Namespace(bin=BIN, dry_run=True)
        [row] = gpu.taken(gpu.STEPS[0], 0.1, arguments)
        self.assertIsNone(row["value"])
        self.assertEqual(row["detail"], "took longer than 0 s")


if __name__ == "__main__":
    unittest.main()
