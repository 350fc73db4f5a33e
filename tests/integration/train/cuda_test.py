"""sluice-train on a node with the driver cuda: the real sluiced and the real
trainer on the strict fake driver, with torch's CUDA tensors on it
(tests/fake_cuda). This proves nothing about a GPU."""

import json
import os
import re
import subprocess
import tomllib
import unittest
from unittest import mock

import cuda_node
import harness

RUN = ["--seq-len", "200", "--hbm", "16MiB"]
MODEL = "--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96".split()
PIECE = 2 << 20  # granularity of leases in bytes


class Cuda(cuda_node.CudaTest):
    def test_losses_of_every_method_are_those_of_a_simulated_node(self):
        socket = self.cuda_daemon()
        for method in cuda_node.METHODS:
            apart = self.both(socket, 5, *RUN, "--method", method)
            self.assertLessEqual(apart, 1e-6, method)
        for method in ("alst", "sluice"):
            apart = self.both(socket, 3, *RUN, "--method", method,
                              "--arch", "gpt", "--dtype", "bf16")
            self.assertLessEqual(apart, cuda_node.BF16, method)
        self.expect_no_findings()

    def test_a_step_makes_the_host_wait_three_times_at_most(self):
        self.expect_few_waits(*RUN)

    def test_ranks_take_the_gpus_that_cuda_visible_devices_leaves(self):
        socket = self.cuda_daemon()
        run = [*RUN, "--steps", "1", "--socket", socket]
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="1"):
            self.on_cuda(self.train, *run)
            code, _, err = self.on_cuda(
                self.run_train, *harness.MODEL, *run, "--data", self.text,
                "--gpu", "0")
        self.assertEqual(code, 2, err)
        self.assertIn("--gpu 0: the node has GPU 1 only", err)
        self.expect_no_findings()

    # A calibration of one chunk runs every segment once, and as the fractions
    # are given it is the only calibration. If cuBLAS allocated a workspace in a
    # segment, the workspace would count as that segment's memory in the plan.
    def test_no_segments_memory_includes_cublas_workspaces(self):
        result = self.on_cuda(self.train, "--seq-len", "60", "--hbm", "16MiB",
                              "--steps", "2", "--alpha", "1", "--socket",
                              self.cuda_daemon())
        self.assertEqual(result["plan"]["mismatches"], 0)
        self.expect_no_findings()

    def test_a_lease_without_room_for_cublas_workspaces_is_refused(self):
        socket = self.cuda_daemon()
        with self.on_the_fakes():
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]
            os.environ["LD_PRELOAD"] = os.path.join(cuda_node.FAKES,
                                                    "libcudart.so.13")
            code, _, err = self.run_train(
                *harness.MODEL, *RUN, "--data", self.text, "--socket", socket)
        self.assertEqual(code, 3, err)
        self.assertIn("out of GPU memory: asked 32 MiB", err)
        self.expect_no_findings()

    def test_the_host_memory_that_a_refusal_names_is_enough(self):
        socket = self.cuda_daemon()
        run = [*RUN, "--steps", "2", "--method", "alst", "--socket", socket]
        code, _, err = self.on_cuda(
            self.run_train, *harness.MODEL, *run, "--data", self.text,
            "--host", "4MiB")  # less than the run needs
        self.assertEqual(code, 3, err)
        given = re.search(r"give --host (\w+)", err)[1]
        self.on_cuda(self.train, *run, "--host", given)
        self.expect_no_findings()

    def test_a_resumed_run_goes_on_bit_for_bit(self):
        socket = self.cuda_daemon()
        run = [*RUN, "--socket", socket, "--dtype", "bf16"]
        save = self.path("save")
        whole = self.on_cuda(self.train, *run, "--steps", "3")
        self.on_cuda(self.train, *run, "--steps", "2", "--save", save)
        rest = self.on_cuda(self.train, *run, "--steps", "3", "--resume", save)
        self.assertEqual(rest["losses"], whole["losses"][2:])
        self.expect_no_findings()

    def test_each_attention_kernel_is_reported_and_has_autos_losses(self):
        socket = self.cuda_daemon()
        run = [*RUN, "--socket", socket, "--steps", "3", "--dtype", "bf16"]
        auto = self.on_cuda(self.train, *run)
        self.assertEqual(auto["attention"], "flash")
        hopper = self.on_cuda(self.train, *run, settings=",capability=90")
        self.assertEqual(hopper["attention"], "cudnn")
        for kernel in "flash", "efficient", "cudnn":
            for method in "recompute", "sluice":
                found = self.on_cuda(self.train, *run, "--attention", kernel,
                                     "--method", method)
                self.assertEqual(found["attention"], kernel)
                self.assertEqual(found["plan"]["mismatches"], 0)
                for one, other in zip(found["losses"], auto["losses"]):
                    self.assertLessEqual(abs(one / other - 1), cuda_node.BF16)
        code, out, err = self.on_cuda(
            self.run_train, *harness.MODEL, *RUN, "--socket", socket, "--dtype",
            "bf16", "--attention", "cudnn", command="check")
        self.assertEqual(code, 0, out + err)
        self.assertIn("attention   cudnn\n", out)
        self.expect_no_findings()

    def test_a_plan_for_another_kernel_is_not_reused(self):
        run = [*RUN, "--socket", self.cuda_daemon(), "--dtype", "bf16"]
        save = self.path("save")
        self.on_cuda(self.train, *run, "--steps", "2", "--save", save)
        code, out, err = self.on_cuda(
            self.run_train, *harness.MODEL, *run, "--data", self.text,
            "--steps", "3", "--resume", save, "--attention", "cudnn")
        self.assertEqual(code, 0, err)
        self.assertIn('this run has --attention "cudnn"', err)
        self.assertIn("bf16, attention by cudnn", err)
        self.expect_no_findings()

    def test_a_simulated_gpu_refuses_a_real_gpus_kernel(self):
        code, _, err = self.run_train(
            *harness.MODEL, *RUN, "--data", self.text, "--dtype", "bf16",
            "--attention", "cudnn", "--socket", self.daemon(name="sim"))
        self.assertEqual(code, 2, err)
        self.assertIn("attention by cudnn needs a real GPU", err)

    def test_gradients_are_those_of_plain_torch(self):
        code, out, err = self.on_cuda(
            self.run_train, *harness.MODEL, *RUN, "--socket",
            self.cuda_daemon(), command="check")
        self.assertEqual(code, 0, out + err)
        self.expect_no_findings()

    # Guards against a lease of the whole pool, which would be refused: the
    # rank's context takes some of the GPU's memory.
    def test_a_lease_without_a_size_leaves_room_for_contexts(self):
        beside = ",context_kib=4096"
        with self.on_the_fakes(settings=beside):
            socket = self.daemon(name="cuda")
        result = self.on_cuda(self.train, "--seq-len", "200", "--steps", "2",
                              "--socket", socket, settings=beside)
        # All but the contexts of the daemon and of the rank: the pool has no
        # spare memory.
        self.assertEqual(result["hbm_bytes_per_gpu"], (64 - 2 * 4) << 20)
        self.expect_no_findings()

    def test_device_sim_is_refused_on_a_cuda_node(self):
        socket = self.cuda_daemon()
        code, _, err = self.on_cuda(
            self.run_train, *harness.MODEL, *RUN, "--socket", socket,
            "--device", "sim")
        self.assertEqual(code, 2, err)
        self.assertIn('GPUs of this daemon are of its driver "cuda"', err)
        self.expect_no_findings()

    def test_sluicectl_plan_counts_the_host_memory_of_a_run(self):
        cut = "--arch llama --chunk 128 --alpha 1 --seq-len 2048".split()
        node = "--vocab 256 --hardware h100-80g --gpus 1 --zero 1".split()
        answer = subprocess.run(
            [os.path.join(harness.BIN, "sluicectl"), "plan", "train", *cut,
             *MODEL, *node, "--no-keep", "--json"],
            capture_output=True, text=True, timeout=60)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        desk = json.loads(answer.stdout)["host_bytes_per_node"]
        socket = self.cuda_daemon()
        code, out, err = self.on_cuda(
            self.run_train, *cut, *MODEL, "--dtype", "bf16", "--steps", "1",
            "--json", "--data", self.text, "--hbm", "16MiB", "--socket",
            socket)
        self.assertEqual(code, 0, err)
        run = json.loads(out)
        plan = max(self.status(socket)["plans"], key=lambda p: p["id"])
        print(f"host bytes: desk {desk}, run {run['host_bytes']}, plan "
              f"{plan['ranks'][0]['host_bytes']}")
        # A plan's bytes are an upper bound; a lease consists of whole pieces.
        self.assertGreaterEqual(run["host_bytes"], desk)
        self.assertLess(run["host_bytes"] - desk, PIECE)
        self.assertLess(abs(plan["ranks"][0]["host_bytes"] - desk), PIECE)
        self.expect_no_findings()

    # The fake's kernels run at a CPU's speed on the fake's streams, and are
    # timed until they are done.
    def test_profile_writes_what_the_planner_reads(self):
        # memory_bytes of the result leaves out the rank's context.
        code, out, err = self.on_cuda(
            self.run_train, "--socket", self.cuda_daemon(), command="profile",
            settings=",context_kib=4096")
        self.assertEqual(code, 0, err)
        self.assertIn("bf16, attention by flash,", out)
        self.assertIn("by the GPU's clock", out)
        self.assertNotIn("SIMULATED", out)
        hardware = tomllib.loads(out)
        # If only their issue were timed, a matmul of 1024 rows would take
        # microseconds.
        self.assertLess(hardware["gpu"]["peak_flops"], 10e12)
        kernels = hardware["kernels"]
        self.assertEqual(kernels["attention_head_dim"], 128)
        self.assertEqual(len(kernels), 7)
        for efficiency in kernels.values():
            self.assertGreater(efficiency, 0)
        self.assertEqual(hardware["gpu"]["memory_bytes"], 60 << 20)
        path = self.path("node.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(out)
        planned = subprocess.run(
            [os.path.join(harness.BIN, "sluicectl"), "plan", "train",
             "--hardware", path, "--gpus", "1", "--arch", "llama", "--layers",
             "2", "--hidden", "64", "--heads", "2", "--ffn", "128", "--vocab",
             "256", "--seq-len", "4K"],
            capture_output=True, text=True, timeout=60)
        self.assertEqual(planned.returncode, 0, planned.stderr)
        self.expect_no_findings()


if __name__ == "__main__":
    unittest.main()
