"""Tests the check `torch` of ./verify --python without a GPU: the check
reports what a user's environment lacks, attention kernels that fail, and wrong
results.

    sluice_verify_test.py    (deploy/bundle/torch, client/python in PYTHONPATH)

The tests replace the parts of the check that need a GPU. torch_test.py injects
most of these faults on the fakes, through ./verify.
"""

import os
import re
import sys
import types
import unittest
from unittest import mock

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # must be set before torch is imported

import torch
from sluice_verify import found, kernels
from sluice_verify.__main__ import run


def a_torch(version="2.10.0", cuda="13.0"):
    return types.SimpleNamespace(
        __version__=version, version=types.SimpleNamespace(cuda=cuda))


class Environment(unittest.TestCase):
    def finds(self, reason):
        _, said = run("torch", "/no/socket")
        self.assertRegex(said or "passed", reason)

    def test_an_old_python_is_reported(self):
        with mock.patch.object(sys, "version_info", (3, 9, 0)):
            self.finds(r"Python is 3\.9, and Sluice needs 3\.10")

    def test_a_missing_torch_is_reported(self):
        with mock.patch.dict(sys.modules, {"torch": None}):
            self.finds("no torch that loads .*--python")

    def test_an_old_torch_is_reported(self):
        with mock.patch.dict(sys.modules, {"torch": a_torch("2.9.1")}):
            self.finds("torch 2.9.1 is too old: install 2.10 or newer")

    def test_a_torch_without_cuda_is_reported(self):
        with mock.patch.dict(sys.modules, {"torch": a_torch(cuda=None)}):
            self.finds("built without CUDA: install one")

    def test_a_torch_that_sees_no_gpu_is_reported(self):
        self.finds("sees no GPU .*driver")

    def test_an_operator_without_a_cuda_kernel_is_reported(self):
        has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
        with mock.patch.object(found, "find_gpu"), mock.patch.object(
                torch._C, "_dispatch_has_computed_kernel_for_dispatch_key",
                lambda name, key: name != "aten::silu_backward"
                and has(name, key)):
            self.finds("no CUDA kernel for aten::silu_backward: install")


class Attention(unittest.TestCase):
    """Tests kernels.attend(). The CPU computes the results of all kernels; a
    case may replace those of one kernel."""

    def attend(self, wrong_kernel="", first_wrong=None):
        """Returns (the reason of the failure or "", what the check recorded).
        `first_wrong(block)` returns the results of `wrong_kernel`, given the
        right ones."""
        block, inputs = kernels._block, kernels._qkv

        def computed(q, k, v, mask, kernel="auto", **options):
            got = block(q, k, v, mask, **options)
            return first_wrong(got) if kernel == wrong_kernel else got

        def on_cpu(device, dtype):
            return inputs("cpu", dtype)

        value = {}
        with mock.patch.multiple(
                kernels, _block=computed, _qkv=on_cpu,
                _runs=lambda backend: "yes"):
            try:
                kernels.attend(value)
            except kernels.Failure as failure:
                return str(failure), value
        return "", value

    def test_right_results_pass(self):
        said, value = self.attend()
        self.assertEqual(said, "")
        self.assertEqual(value["blocks"], dict.fromkeys(
            ("flash bf16", "efficient fp32", "cudnn bf16", "efficient bf16"),
            "yes"))

    def fails(self, block):
        raise RuntimeError("CUDA error: no kernel image is available")

    def dq_by(self, factor):
        def wrong(block):
            o, lse, dq, *rest = block
            return [o, lse, dq * factor, *rest]
        return wrong

    def test_a_needed_kernel_that_does_not_run_fails(self):
        said, _ = self.attend("flash", self.fails)
        self.assertRegex(said, "flash attention does not run on this GPU")

    def test_an_optional_kernel_need_not_run(self):
        said, value = self.attend("cudnn", self.fails)
        self.assertEqual(said, "")
        self.assertIn("no kernel image", value["blocks"]["cudnn bf16"])

    def test_a_wrong_needed_kernel_fails(self):
        said, _ = self.attend("efficient", self.dq_by(1.02))
        self.assertRegex(said, "efficient attention gives a dq that is")

    def test_a_wrong_optional_kernel_fails(self):
        said, _ = self.attend("cudnn", self.dq_by(1.2))
        self.assertRegex(said, "cudnn attention gives a dq that is")


class Gpu(unittest.TestCase):
    def test_a_wrong_product_is_reported(self):
        ones = torch.ones(64, 64)
        gpu = types.SimpleNamespace(name="a GPU", major=9, minor=0)
        for factor, said in ((1, None), (2, "a product of ones on a GPU")):
            with mock.patch.object(torch.cuda, "init"), mock.patch.object(
                    torch.cuda, "get_device_properties", lambda _: gpu
                    ), mock.patch.object(torch, "ones",
                                         lambda *_, by=factor, **__: by * ones):
                try:
                    found.find_gpu(torch, {})
                    self.assertIsNone(said)
                except found.Failure as failure:
                    self.assertTrue(re.match(said, str(failure)), failure)


if __name__ == "__main__":
    unittest.main()
