#!/usr/bin/env python3
"""./verify --python PATH on the fakes (tests/fake_cuda): its checks of torch
pass there, and each injected fault fails the check that must detect it.

    torch_test.py BIN_FOLDER FAKE_FOLDER PYTHON [unittest's arguments]

PYTHON has a torch with NVIDIA's libraries; the fakes replace their kernels.
"""

import fcntl
import os
import shutil
import sys
import unittest

from kit import BIN, FAKE, Verify

PYTHON = os.path.abspath(sys.argv[3])
# `malloc=1`: torch's own allocator also allocates memory, beside the leases.
NODE = "gpus=2,memory_mib=256,malloc=1,host_numa=0"
# Jitter, so that operations are rarely ordered by luck.
LATE = NODE + ",jitter_us=500"

ON_FAKES = """import ctypes
ctypes.CDLL("libtorch_cuda.so", mode=ctypes.RTLD_GLOBAL)
"""
# Hides packages of the tests' environment that the kit must not need.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("transformers", "accelerate"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Absent())
"""


class OfTorch(Verify):
    patience_s = 1000

    def verify(self, *arguments, **how):
        # A check's default limit is meant for a GPU; the fakes compute on the
        # CPU.
        if "--limit" not in arguments:
            arguments += ("--limit", "900")
        return super().verify(*arguments, **how)

    def python(self, fault="", fakes=True):
        """Makes a Python for --python and returns its path. This Python runs
        `fault` before anything else; it uses the fakes unless `fakes` is
        False."""
        folder = self.folder + "/environment/bin"
        os.makedirs(folder)
        with open(folder + "/sitecustomize.py", "w") as file:
            file.write((ON_FAKES if fakes else "") + WITHOUT + fault)
        path = folder + "/python3"
        with open(path, "w") as script:
            script.write(
                "#!/bin/sh\n"
                f"export PYTHONPATH=$PYTHONPATH:{folder} OMP_NUM_THREADS=1\n" +
                (f"export LD_LIBRARY_PATH={FAKE}/over_real:{FAKE}\n"
                 f"export LD_PRELOAD={FAKE}/libcudart.so.13\n"
                 if fakes else "") + f'exec {PYTHON} "$@"\n')
        os.chmod(path, 0o700)
        return path

    def finds(self, name, reason, fault="", *arguments, fakes=True, **how):
        self.expect_fails(name, reason, "--python", self.python(fault, fakes),
                          *arguments, **{"fake": NODE, **how})
        self.nothing_runs()


class Passes(OfTorch):
    def test_training_and_memory_pass(self):
        checks = self.verify("--only", "training,memory", "--python",
                             self.python(), fake=NODE)
        self.assertEqual(self.status, 0, self.said)
        training = checks["training"]["value"]
        self.assertEqual(len(training["gpu"]), 50)
        self.assertNotEqual(training["gpu"], training["cpu"])
        for run in checks["memory"]["value"]["runs"]:
            self.assertEqual(run["host_peak"], run["host_promised"])
            self.assertGreater(run["leased"], 0)
        self.nothing_runs()

    def test_throughput_reports_speeds_and_the_fastest_kernel(self):
        checks = self.verify("--only", "throughput", "--python", self.python(),
                             fake=NODE)
        self.assertEqual(self.status, 0, self.said)
        speed = checks["throughput"]["value"]
        # The fake GPU is no known model.
        self.assertIsNone(speed["peak_flops"])
        for kernel in "flash", "efficient":
            for rows in speed["kernels"], speed["steps"]:
                self.assertTrue(any(
                    each["kernel"] == kernel and each["tokens_per_s"] > 0
                    for each in rows if "why_not" not in each), kernel)
            last = [row for row in speed["kernels"]
                    if row["kernel"] == kernel][-1]
            self.assertGreater(last["warm_forward_s"], 0)
        self.assertTrue(any(step["kernel"] == "cudnn" and step["seconds"] > 0
                            for step in speed["steps"]))
        self.assertRegex(speed["fastest"]["bf16"], "^bf16: (flash|cudnn|"
                         r"efficient) is the fastest at \d+ rows, [\d.]+ "
                         r"times as fast as .*, [\d.]+ times as fast as .*: "
                         r"sluice-train --attention \w+ --dtype bf16, or "
                         r'sluice.stream\(model, kernel="\w+"\)$')
        self.assertRegex(speed["fastest"]["fp32"], "^fp32: efficient is ")
        cudnn = [row for row in speed["kernels"] if row["kernel"] == "cudnn"]
        self.assertIn("cudnn", cudnn[0]["why_not"].lower())
        self.nothing_runs()

    def test_torch_and_gradients_pass_and_their_archive_names_no_machine(self):
        checks = self.verify("--only", "torch,gradients", "--python",
                             self.python(), fake=LATE)
        for name, check in checks.items():
            self.assertEqual(check["status"], "passed", (name, self.said))
            self.assertEqual(check["value"]["on_gpu"], 0)
        self.assertEqual(self.status, 0, self.said)
        found = checks["torch"]["value"]
        self.assertRegex(found["torch"], r"^\d+\.\d+")
        self.assertGreater(found["operators"], 40)
        self.assertEqual(set(found["attention"]),
                         {"flash", "efficient", "cudnn"})
        self.assertEqual(
            [(c["case"].split(",")[0], *(word in c["case"] for word in (
                "bfloat16", 'hidden="host"')), *c["kernels"])
             for c in checks["gradients"]["value"]["cases"]],
            [("causal", False, False, "efficient"),
             ("causal", False, True, "efficient"),
             ("causal", True, False, "flash"), ("causal", True, True, "flash"),
             # "whole scores" computes the blocks at the window's edge.
             ("window", False, False, "efficient", "whole scores"),
             ("window", False, True, "efficient", "whole scores"),
             ("window", True, False, "flash"),
             ("documents", False, False, "efficient"),
             ("documents", True, True, "flash"),
             ("causal", False, False, "efficient"),
             ("causal", False, False, "whole scores")])
        environment = os.path.dirname(os.path.dirname(PYTHON))
        for name, text in self.archive().items():
            for told in (self.folder, os.uname().nodename, BIN, environment):
                self.assertNotIn(told, text, name)
        self.nothing_runs()

    def test_the_first_free_gpu_is_used(self):
        node = self.folder + "/node"
        os.mkdir(node)
        with open(node + "/memory-1-0-1-0", "wb+") as held:  # a lease of GPU 0
            held.truncate(64 << 20)
            fcntl.flock(held, fcntl.LOCK_SH)
            checks = self.verify("--only", "torch", "--python", self.python(),
                                 fake=NODE + ",node=" + node)
        self.assertEqual(checks["torch"]["status"], "passed", self.said)
        self.assertEqual(checks["torch"]["value"]["on_gpu"], 1)


class Torch(OfTorch):
    def test_an_old_python_fails(self):
        self.finds("torch", r"Python is 3\.9, and Sluice needs 3\.10",
                   "import sys\nsys.version_info = (3, 9, 0)\n")

    def test_a_missing_torch_fails(self):
        self.finds("torch", "no torch that loads .*--python",
                   "import sys\nsys.modules['torch'] = None\n")

    def test_an_old_torch_fails(self):
        self.finds("torch", "torch 2.9.1 is too old: install 2.10 or newer",
                   "import torch\ntorch.__version__ = '2.9.1'\n")

    def test_a_torch_without_cuda_fails(self):
        self.finds("torch", "built without CUDA: install one",
                   "import torch\ntorch.version.cuda = None\n")

    def test_a_torch_that_sees_no_gpu_fails(self):
        self.finds("torch", "sees no GPU .*driver", fakes=False)

    def test_an_operator_without_a_cuda_kernel_fails(self):
        self.finds("torch", "no CUDA kernel for aten::silu_backward: install",
                   HAS_NOT)

    def test_attention_that_does_not_run_fails(self):
        self.finds("torch", "flash attention does not run on this GPU",
                   FAILS.format("_flash_attention_forward"))

    def test_wrong_attention_fails(self):
        self.finds("torch", "efficient attention gives a dq that is",
                   WRONG.format("_scaled_dot_product_efficient_attention_"
                                "backward", 1.02, 0))

    def test_a_wrong_optional_kernel_fails(self):
        self.finds("torch", "cudnn attention gives a dq that is",
                   WRONG.format("_scaled_dot_product_cudnn_attention_backward",
                                1.2, 0))

    def test_an_incomplete_kit_fails(self):
        kit = self.folder + "/kit"
        os.makedirs(kit + "/bin")
        shutil.copy2(BIN + "/verify", kit + "/bin")
        self.finds("torch", "no python/sluice_verify .*unpack the kit whole",
                   kit=kit + "/bin")


# Faults, which Python runs as sitecustomize.
HAS_NOT = """
import torch
has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
torch._C._dispatch_has_computed_kernel_for_dispatch_key = (
    lambda name, key: name != "aten::silu_backward" and has(name, key))
"""
FAILS = """
import torch
class Fails:
    def __init__(self, kernel):
        self.kernel = kernel
    def __getattr__(self, name):
        return getattr(self.kernel, name)
    def __call__(self, *_, **__):
        raise RuntimeError("CUDA error: no kernel image is available")
torch.ops.aten.{0} = Fails(torch.ops.aten.{0})
"""
# Scales the first result of operator {0} by {1}, after {2} calls.
WRONG = """
import torch
class Wrong:
    def __init__(self, kernel):
        self.kernel, self.calls = kernel, 0
    def __getattr__(self, name):
        return getattr(self.kernel, name)
    def __call__(self, *args, **kwargs):
        first, *rest = self.kernel(*args, **kwargs)
        self.calls += 1
        return first * ({1} if self.calls > {2} else 1), *rest
torch.ops.aten.{0} = Wrong(torch.ops.aten.{0})
"""
NO_WAIT = """
from sluice.memory import copies
copies.Copies.wait = lambda self, direction, ticket: (
    self.in_flight[direction].settle(ticket))
"""


# Leaves the GPU's parameters without an update.
NO_UPDATE = """
import torch
step = torch.optim.AdamW.step
torch.optim.AdamW.step = lambda self: (
    None if self.param_groups[0]["params"][0].is_cuda else step(self))
"""
KEEPS = """
from sluice.memory import arena
drop, hoard, calls = arena.HostArena.drop, [], []
def kept(self, host):
    calls.append(1)
    return hoard.append(host) if len(calls) % 10 == 0 else drop(self, host)
arena.HostArena.drop = kept
"""
HOARDS = """
from sluice.memory import arena
get, hoard, calls = arena.HostArena.get, [], []
def kept(self, *args):
    calls.append(1)
    if len(calls) % 10 == 0:
        hoard.append(get(self, *args).clone())
    return get(self, *args)
arena.HostArena.get = kept
"""
# Each query reports 32 MiB more in use than the one before. The memory is
# neither torch's nor a lease's.
ASIDE = """
import torch
free = torch.cuda.mem_get_info
asked = []
def mem_get_info(device):
    asked.append(device)
    left, total = free(device)
    return left - (len(asked) << 25), total
torch.cuda.mem_get_info = mem_get_info
"""
# Number of calls of a backward kernel in the first case until the package's
# own probe is over. A fault starts later, since the probe would detect it too.
OF_PROBE = 45


class Gradients(OfTorch):
    def test_a_wrong_kernel_fails(self):
        self.finds("gradients", "^causal, .*float32.* of its norm apart",
                   WRONG.format("_scaled_dot_product_efficient_attention_"
                                "backward", 1.02, OF_PROBE))

    def test_a_kernel_that_is_wrong_in_bf16_fails(self):
        self.finds("gradients", "causal, .*bfloat16.*plain torch's",
                   WRONG.format("_flash_attention_backward", 1.5, 0))

    def test_compute_that_does_not_wait_for_copies_fails(self):
        self.finds("gradients", "ended with status 86", NO_WAIT, fake=LATE)

    def test_a_failing_copy_is_reported_with_its_driver_call(self):
        self.finds("gradients", "^causal, .*cuMemcpyAsync",
                   fake=NODE + ",fail=cuMemcpyAsync:40:999")

    def test_copies_that_never_end_fail(self):
        self.expect_hangs("gradients", "causal", (12, 36, 59), "--python",
                          self.python(), fake=NODE + ",hang=cuMemcpyAsync:9")
        self.nothing_runs()


class Training(OfTorch):
    def test_a_gradient_that_is_wrong_after_some_steps_fails(self):
        self.finds("training", r"step \d+ of 50: the loss is .* apart",
                   WRONG.format("_scaled_dot_product_efficient_attention_"
                                "backward", 1.5, 60))

    def test_updates_that_do_nothing_fail(self):
        self.finds("training", "step 1 of 50: the loss", NO_UPDATE)


class Memory(OfTorch):
    def test_kept_host_memory_fails(self):
        self.finds("memory", "1 layers: the host held .* promised were", KEEPS)

    def test_kept_device_tensors_fail(self):
        self.finds("memory", "5 layers more take .* beside their weights",
                   HOARDS)

    def test_unknown_gpu_memory_fails(self):
        self.finds("memory", "are neither torch's nor the lease's", ASIDE)


class Throughput(OfTorch):
    def test_an_optional_kernel_need_not_run(self):
        checks = self.verify(
            "--only", "throughput", "--python", self.python(FAILS.format(
                "_scaled_dot_product_cudnn_attention")), fake=NODE)
        self.assertEqual(self.status, 0, self.said)
        speed = checks["throughput"]["value"]
        cudnn = [s for s in speed["steps"] if s["kernel"] == "cudnn"]
        self.assertIn("no kernel image", cudnn[0]["why_not"])
        self.assertNotIn("cudnn", speed["fastest"]["bf16"])

    def test_a_wrong_optional_kernel_fails(self):
        self.finds("throughput", "cudnn attention gives a dq that is",
                   WRONG.format("_scaled_dot_product_cudnn_attention_backward",
                                1.2, 0))

    def test_a_step_that_does_not_run_fails(self):
        self.finds("throughput", "a step by flash attention: .*no kernel image",
                   FAILS.format("_flash_attention_backward"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
