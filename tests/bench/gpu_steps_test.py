#!/usr/bin/env python3
"""bench-gpu measures every method through the real sluiced and sluice-train on
the fakes (tests/fake_cuda), and says why where there is no GPU. It proves
nothing about a GPU."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ["SLUICE_BIN_DIR"]
FAKES = os.environ["SLUICE_FAKE_CUDA_DIR"]


def run(folder, **variables):
    return subprocess.run(
        [sys.executable, os.path.join(HERE, "gpu_steps.py"), "--bin", BIN,
         "--json", os.path.join(folder, "out.json"), "--small"],
        env={**os.environ, **variables}, capture_output=True, text=True,
        check=False)


class GpuSteps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_measures_each_method(self):
        ended = run(
            self.folder, LD_LIBRARY_PATH=FAKES, OMP_NUM_THREADS="1",
            CUBLAS_WORKSPACE_CONFIG=":1024:1",  # for small leases
            LD_PRELOAD=os.path.join(FAKES, "libcudart.so.13"),
            SLUICE_FAKE_CUDA="gpus=1,host_numa=0,pageable=0,cublas=1,"
                             f"node={self.folder}")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        with open(os.path.join(self.folder, "out.json"),
                  encoding="utf-8") as file:
            entries = json.load(file)
        self.assertEqual([entry["name"].rpartition(", ")[2]
                          for entry in entries],
                         ["keep-all", "recompute", "alst", "sluice"])
        for entry in entries:
            self.assertGreater(entry["value"], 0)
        self.assertFalse(
            os.path.exists(os.path.join(self.folder, "findings")))

    def test_says_why_where_no_gpu_answers(self):
        ended = run(self.folder, LD_LIBRARY_PATH=FAKES,
                    SLUICE_FAKE_CUDA="fail=cuInit:1:100")
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("error: sluiced did not start:", ended.stderr)
        self.assertIn("cuInit", ended.stderr)
        self.assertEqual(len(ended.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
