#!/usr/bin/env python3
"""operators_test.py HARNESS RECORDER CHECKER LIBTORCH_CUDA VENV

Checks that the real libtorch_cuda.so has a CUDA kernel for every ATen operator
that training runs call on sim, apart from ONLY_ON_CPU. HARNESS is the folder of
the trainer's tests. VENV has NVIDIA's libraries, which libtorch_cuda.so needs
(./dev setup python)."""

import glob
import os
import subprocess
import sys
import tempfile
import unittest

ARGUMENTS = sys.argv[1:6]
HARNESS, RECORDER, CHECKER, LIBTORCH_CUDA, VENV = ARGUMENTS
NVIDIA = glob.glob(VENV + "/lib/python3*/site-packages/nvidia/*/lib")
sys.path.insert(0, HARNESS)
import harness  # noqa: E402

# Operators that client/torch/backend calls on the CPU only.
ONLY_ON_CPU = {
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
}
# Operators that client/torch/backend calls on a GPU instead, or in addition.
INSTEAD = {
    "aten::_flash_attention_forward",
    "aten::_flash_attention_backward",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::addmm.dtype_out",
}
RUNS = [f"--arch {arch} --method {method} --ranks {ranks} --dtype {dtype}"
        for arch, ranks, dtype in (("llama", 1, "fp32"), ("gpt", 2, "bf16"))
        for method in ("keep-all", "recompute", "alst", "sluice")]


def without_kernel(operators):
    """Returns those of `operators` without a CUDA kernel in the real library.
    Raises RuntimeError if the library cannot be loaded."""
    checked = subprocess.run(
        [CHECKER, LIBTORCH_CUDA], input="".join(o + "\n" for o in operators),
        capture_output=True, text=True,
        env=dict(os.environ, LD_LIBRARY_PATH=":".join(NVIDIA)))
    if checked.returncode != 0:
        raise RuntimeError(checked.stderr)
    return set(checked.stdout.split())


class Operators(harness.TrainTest):
    def setUp(self):
        super().setUp()
        self.assertTrue(NVIDIA, f"no NVIDIA libraries in {VENV}: run ./dev "
                        "setup python")

    def recorded(self):
        """Returns the operators that any of RUNS calls."""
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(LD_PRELOAD=RECORDER,
                              SLUICE_RECORDED_OPERATORS=folder)
            try:
                for run in RUNS:
                    self.train("--private", "--seq-len", "100", "--steps", "2",
                               *run.split())
            finally:
                del os.environ["LD_PRELOAD"]
            lines = set()
            for name in os.listdir(folder):
                with open(os.path.join(folder, name)) as file:
                    lines |= set(file.read().split())
        return lines

    def test_each_operator_of_a_run_has_a_cuda_kernel(self):
        operators = self.recorded()
        print(f"{len(operators)} operators in {len(RUNS)} runs")
        self.assertLessEqual(ONLY_ON_CPU, operators)
        self.assertGreater(len(operators), 60)
        self.assertEqual(without_kernel(operators), ONLY_ON_CPU)

    def test_each_replacement_has_a_cuda_kernel(self):
        self.assertEqual(without_kernel(INSTEAD), set())

    def test_an_unknown_operator_is_reported(self):
        self.assertEqual(without_kernel({"aten::mm", "aten::no_such.out"}),
                         {"aten::no_such.out"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
