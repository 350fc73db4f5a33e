"""AdamW's states in host memory: the run has the same bits as with states in
HBM, also if the states exceed the GPU's memory and if a run is killed."""

import glob
import json
import os
import signal
import subprocess
import unittest

import either_node
import harness
from resume_test import tensors_of

# Many layers, so that the ring in HBM is small compared to the states. In a run
# in bf16 the states take 6.3 MB, and weights and gradients take 3.2 MB.
MODEL = ("--layers 16 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --chunk 64 "
         "--alpha 1 --no-keep --dtype bf16 --seq-len 200 --warmup 2").split()
HOST = ("--optimizer-states", "host")
STEPS = 20 if harness.WHOLE else 6


class OptimizerStates(either_node.NodeTest):
    def job(self, *flags, status=0, steps=STEPS):
        """Runs a job; returns the object of --json and stderr."""
        command = [*MODEL, "--json", "--data", self.text, "--private",
                   "--steps", str(steps), *flags]
        code, out, err = self.run_train(*command)
        self.assertEqual(code, status, err)
        return json.loads(out), err

    # On the fakes the lease also contains cuBLAS's workspaces.
    def small(self):
        return "8MiB" if either_node.ON_FAKES else "6MiB"

    def test_losses_are_those_of_states_in_hbm_to_the_bit(self):
        cases = [("--ranks", "1"), ("--ranks", "2", "--accumulate", "2")]
        if harness.WHOLE:
            cases += [("--ranks", "4"), ("--ranks", "2", "--arch", "gpt")]
        for flags in cases:
            with self.subTest(flags=flags):
                hbm, _ = self.job(*flags, "--hbm", "16MiB",
                                  "--optimizer-states", "hbm")
                host, _ = self.job(*flags, *HOST, "--hbm", "16MiB")
                self.assertEqual(len(hbm["losses"]), STEPS)
                self.assertEqual(hbm["losses"], host["losses"])
                self.assertEqual(host["optimizer_states"], "host")
                self.assertEqual(host["plan"]["mismatches"], 0)
                # The states m, v and master are leased, in whole pieces.
                ranks = int(flags[1])
                states = 12 * (host["host_bytes"] > 0) * self.parameters(flags)
                more = host["host_bytes"] - hbm["host_bytes"]
                self.assertGreaterEqual(more, states)
                self.assertLess(more - states, ranks * (2 << 20))

    def parameters(self, flags):
        layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64
        if "gpt" not in flags:
            return 16 * layer + 2 * 256 * 64 + 64
        layer = (2 * 64 * 64 + 2 * 32 * 64 + 2 * 96 * 64 + 4 * 64 + 2 * 64
                 + 2 * 32 + 96 + 64)
        return 16 * layer + (256 + 200) * 64 + 2 * 64

    def test_states_that_leave_no_room_for_a_step_go_to_host_memory(self):
        small = ("--hbm", self.small())
        hbm, _ = self.job("--hbm", "32MiB", "--ranks", "1")
        self.assertEqual(hbm["optimizer_states"], "hbm")
        self.assertIsNone(hbm["optimizer_states_why"])
        host, err = self.job(*small)
        self.assertEqual(host["optimizer_states"], "host")
        self.assertEqual(host["losses"], hbm["losses"])
        self.assertIn("optimizer states in host memory: ",
                      host["optimizer_states_why"])
        self.assertIn(host["optimizer_states_why"], err)
        refused, _ = self.job(*small, "--optimizer-states", "hbm", status=3)
        self.assertEqual(refused["limited_by"], "gpu_memory")
        self.assertIn("--optimizer-states host", refused["message"])

    def test_states_on_host_resume_from_hbm_and_back(self):
        folders = [self.path(name) for name in ("whole", "to_host", "to_hbm")]
        flags = ("--hbm", "16MiB", "--ranks", "2")
        hbm = (*flags, "--optimizer-states", "hbm")
        host = (*flags, *HOST)
        whole, _ = self.job(*hbm, "--save", folders[0])
        for first, second, folder in ((hbm, host, folders[1]),
                                      (host, hbm, folders[2])):
            self.job(*first, "--save", folder, steps=3)
            rest, _ = self.job(*second, "--save", folder, "--resume", folder)
            self.assertEqual(rest["losses"], whole["losses"][3:])
            last = f"checkpoint-{STEPS}"
            names = glob.glob(f"{folders[0]}/{last}/*.safetensors")
            self.assertEqual(len(names), 3)
            for name in names:
                ours = os.path.join(folder, last, os.path.basename(name))
                self.assertTrue(tensors_of(name) == tensors_of(ours), ours)

    def test_a_killed_run_resumes_bit_for_bit(self):
        folder, log = self.path("killed"), self.path("log")
        flags = (*HOST, "--hbm", "16MiB", "--save-every", "2")
        whole, _ = self.job(*HOST, "--hbm", "16MiB")
        command = [harness.TRAIN, "train", *MODEL, "--data", self.text,
                   "--steps", "1000", "--save", folder, "--log-jsonl", log,
                   *flags]
        if either_node.ON_FAKES:
            command += ["--socket", self.private_socket()]
        else:
            command += ["--private"]
        run = self.start(command, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 4,
                        "the run does not train")
        for pid in harness.ranks_of(run.pid).values():
            os.kill(pid, signal.SIGKILL)
        run.communicate(timeout=harness.PATIENCE_S)
        # A run that got too far resumes from an earlier checkpoint, because
        # `whole` must have the steps that follow.
        newest = sorted(int(name.rpartition("-")[2])
                        for name in glob.glob(folder + "/checkpoint-*")
                        if not name.endswith(".tmp"))
        step = min(newest[-1], STEPS - 2)
        rest, _ = self.job(*HOST, "--hbm", "16MiB", "--resume",
                           f"{folder}/checkpoint-{step}")
        self.assertEqual(rest["losses"], whole["losses"][step:])

    def test_a_non_finite_loss_stops_before_the_update(self):
        result, _ = self.job(*HOST, "--hbm", "16MiB", "--lr", "1e3",
                             "--weight-decay", "1e3", status=1, steps=200)
        self.assertIn("stopped before the update", result["message"])

    def test_other_methods_are_refused(self):
        code, _, err = self.run_train("--private", "--method", "alst", *HOST)
        self.assertEqual(code, 2, err)
        self.assertIn("--optimizer-states host with --method alst", err)


if __name__ == "__main__":
    unittest.main()
