"""Ranks on GPUs of one node: the real sluiced and the real trainer over
torch's own ProcessGroupNCCL, on the fake driver, runtime and NCCL
(tests/fake_cuda). As within a real node, that NCCL does not report another
rank's death. This proves nothing about a GPU."""

import os
import re
import signal
import subprocess
import time
import tomllib
import unittest
from unittest import mock

import cuda_node
import harness

RUN = "--ranks 2 --seq-len 200 --hbm 16MiB".split()


class CudaRanks(cuda_node.CudaTest):
    # torch's own library, with CPU implementations of its kernels.
    libraries = [os.path.join(cuda_node.FAKES, "over_real"), cuda_node.FAKES]

    def setUp(self):
        super().setUp()
        self.play_nccl("silent=1")
        self.runs = 0

    def play_nccl(self, settings):
        played = mock.patch.dict(os.environ, SLUICE_FAKE_NCCL=settings)
        played.start()
        self.addCleanup(played.stop)

    def expect_good_ends(self):
        """Makes NCCL's fake report a rank that ends by an abort as a finding.
        """
        self.play_nccl("silent=1,aborts=0")

    def start_run(self, socket, *flags, steps=100000, **options):
        """Starts a run, waits until it has trained some steps, and returns it
        and its log."""
        self.runs += 1
        log = self.path(f"log{self.runs}")
        run = self.on_cuda(
            self.start,
            [harness.TRAIN, "train", *harness.MODEL, *RUN, *flags, "--socket",
             socket, "--steps", str(steps), "--data", self.text,
             "--log-jsonl", log],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 2,
                        "the run does not train")
        return run, log

    def expect_end(self, run, socket, log=None, of=""):
        """Waits for a run that fails; returns its one-line error and its
        stderr. With `log` it prints the time from the run's last step to its
        end. Only `./dev bench deaths` checks that time, because tests run in
        parallel."""
        _, err = run.communicate(timeout=200)
        if log is not None:
            after = time.time() - os.stat(log).st_mtime
            print(f"{of}: ended {after:.2f} s after the last step")
        self.assertEqual(run.returncode, 1, err)
        lines = [line for line in err.splitlines() if line.startswith("error:")]
        self.assertEqual(len(lines), 1, err)
        with self.on_the_fakes():
            self.wait_until(lambda: self.leased(socket) == 0,
                            "memory is still leased")
        return lines[0], err

    # Guards against a thread of rank 1 on GPU 0: torch creates a context there
    # when the thread records an event.
    def expect_contexts_on_their_own_gpus(self, runs=1):
        """Checks that the ranks of `runs` undisturbed runs have contexts only
        on their own GPUs."""
        self.assertEqual(sorted(self.said_at_end("contexts", 2 * runs)),
                         ["0"] * runs + ["1"] * runs)


class Losses(CudaRanks):
    """On GPUs the losses are those of a simulated node."""

    def test_losses_of_every_method_are_those_of_a_simulated_node(self):
        self.expect_good_ends()
        socket = self.cuda_daemon()
        for method in cuda_node.METHODS:
            apart = self.both(socket, 3, *RUN, "--method", method)
            self.assertLessEqual(apart, 1e-6, method)
        for method in cuda_node.METHODS:
            apart = self.both(socket, 3, *RUN, "--method", method,
                              "--arch", "gpt", "--dtype", "bf16")
            self.assertLessEqual(apart, cuda_node.BF16, method)
        self.expect_contexts_on_their_own_gpus(runs=2 * len(cuda_node.METHODS))
        self.expect_no_findings()


class Computes(CudaRanks):
    """Checks other results of undisturbed runs."""

    def test_a_step_makes_the_host_wait_three_times_at_most(self):
        self.expect_few_waits(*RUN, ranks=2)

    def test_the_optimizers_collectives_are_those_of_the_formula(self):
        """testing::OptimizerCollectives() counts 9 collectives per step for
        this model on 2 ranks: 8 by NCCL, and the norm's on the CPU
        (planner_stream's states_test)."""
        socket = self.cuda_daemon()
        self.play_nccl("silent=1,aborts=0,counts=1")
        issued = {}
        for method, states in (("sluice", "hbm"), ("sluice", "host"),
                               ("recompute", "hbm")):
            for steps in (2, 12):
                _, _, err = self.on_cuda(
                    self.run_train, *harness.MODEL, *RUN, "--method", method,
                    "--optimizer-states", states, "--socket", socket,
                    "--steps", str(steps), "--data", self.text)
                counts = re.findall(r"fake libnccl: reduce=(\d+) "
                                    r"reduce_scatter=(\d+) all_gather=(\d+) "
                                    r"broadcast=(\d+)", err)
                self.assertEqual(len(counts), 2, err)  # one line per rank
                issued[steps] = [int(n) for n in counts[0]]
                self.assertEqual(counts[0], counts[1])
            per_step = [(b - a) / 10 for a, b in zip(issued[2], issued[12])]
            self.assertEqual(per_step, [0, 4, 4, 0], f"{method}, {states}")
        self.expect_no_findings()

    def test_a_resumed_run_goes_on_bit_for_bit(self):
        self.expect_good_ends()
        socket = self.cuda_daemon()
        for dtype in ("fp32", "bf16") if harness.WHOLE else ("bf16",):
            run = [*RUN, "--socket", socket, "--dtype", dtype]
            save = self.path(dtype)
            whole = self.on_cuda(self.train, *run, "--steps", "3")
            self.on_cuda(self.train, *run, "--steps", "2", "--save", save)
            rest = self.on_cuda(self.train, *run, "--steps", "3", "--resume",
                                save)
            self.assertEqual(rest["losses"], whole["losses"][2:])
        self.expect_no_findings()

    def test_gradients_are_those_of_plain_torch(self):
        self.expect_good_ends()
        socket = self.cuda_daemon()
        cases = [("sluice", "bf16"), ("alst", "fp32"), ("sluice", "fp32"),
                 ("recompute", "bf16")]
        cases = cases if harness.WHOLE else cases[:2]
        for method, dtype in cases:
            code, out, err = self.on_cuda(
                self.run_train, *harness.MODEL, *RUN, "--socket", socket,
                "--method", method, "--dtype", dtype, command="check")
            self.assertEqual(code, 0, f"{method} {dtype}: {out}{err}")
        self.expect_contexts_on_their_own_gpus(runs=len(cases))
        self.expect_no_findings()

    def test_profile_measures_all_to_all_over_nccl(self):
        self.expect_good_ends()
        code, out, err = self.on_cuda(
            self.run_train, "--ranks", "2", "--socket", self.cuda_daemon(),
            command="profile")
        self.assertEqual(code, 0, err)
        exchanged = re.search("# An all-to-all over NCCL, ([0-9]+) MiB of each "
                              "rank", out)
        self.assertTrue(exchanged, out)
        measured = tomllib.loads(out)
        self.assertEqual(measured["node"]["gpus"], 2)
        # Copies are timed until they are done; timing only their issue by the
        # host's clock would give terabytes per second.
        rate = measured["links"]["gpu_bytes_per_s"]
        self.assertGreater(rate, 0)
        self.assertLess(rate, 1e12)
        # Half of a rank's bytes went to the other rank, which took at least 2
        # ms, unless the buffers to send and to receive did not fit in half of
        # the GPU's memory.
        size = int(exchanged[1]) << 20
        if 4 * size <= measured["gpu"]["memory_bytes"] / 2:
            self.assertGreaterEqual(size / 2 / rate, 0.999 * 2e-3)
        self.expect_contexts_on_their_own_gpus()
        self.expect_no_findings()

    def test_each_rank_reports_its_contexts_and_nccls_memory(self):
        socket = self.cuda_daemon()
        run, _ = self.start_run(
            socket, settings=",context_kib=4096,nccl_kib=2048")
        def outside():
            status = self.status(socket)
            return [rank["outside_bytes"] for job in status["jobs"]
                    for rank in job["ranks"]]
        self.wait_until(lambda: outside() == [6 << 20, 6 << 20],
                        "the ranks do not report their outside memory")
        # Without spare memory the bytes are held outside, and are no part of a
        # lease.
        self.assertEqual([gpu["held_outside_bytes"]
                          for gpu in self.status(socket)["gpus"]], outside())
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=200)
        self.assertEqual(run.returncode, 130, err)
        self.wait_until(lambda: not any(
            gpu["held_outside_bytes"] for gpu in self.status(socket)["gpus"]),
            "memory is still held outside leases")
        self.expect_contexts_on_their_own_gpus()
        self.expect_no_findings()

    # Guards against ranks that lease all memory before NCCL allocates its own.
    def test_leases_leave_room_for_nccl_without_spare_memory(self):
        self.expect_good_ends()
        run = self.on_cuda(
            self.train, "--ranks", "2", "--seq-len", "200", "--steps", "2",
            "--socket", self.cuda_daemon(),
            settings=",context_kib=4096,nccl_kib=8192")
        # 64 MiB less the rank's context and NCCL's memory.
        self.assertEqual(run["hbm_bytes_per_gpu"], 52 << 20)
        self.expect_no_findings()

    # Guards against ranks that each report that another has probably ended.
    def test_two_ranks_on_one_gpu_are_refused_by_name(self):
        socket = self.cuda_daemon()
        for flags in ("--ranks 4", "--ranks 2 --gpu 0,0"):
            code, _, err = self.on_cuda(
                self.run_train, *harness.MODEL, *flags.split(), "--seq-len",
                "200", "--hbm", "8MiB", "--data", self.text, "--socket", socket)
            self.assertEqual(code, 2, err)
            self.assertEqual(len(err.strip().splitlines()), 1, err)
            self.assertRegex(err, "2 ranks of this run are on GPU [01], and "
                                  "NCCL takes one")
        self.expect_no_findings()


class Ends(CudaRanks):
    """Checks how a run ends, and what remains after it."""

    def test_kill_9_of_a_rank_ends_the_other(self):
        socket = self.cuda_daemon()
        for victim in (0, 1):
            with self.subTest(victim=victim):
                run, log = self.start_run(socket)
                os.kill(harness.ranks_of(run.pid)[victim], signal.SIGKILL)
                line, _ = self.expect_end(run, socket, log,
                                          f"kill -9 of rank {victim}")
                self.assertIn(f"rank {victim} ended with signal 9", line)
        self.expect_no_findings()

    def test_a_stopped_rank_is_named_and_not_the_one_that_waits(self):
        socket = self.cuda_daemon()
        for victim in (0, 1):
            with self.subTest(victim=victim):
                run, _ = self.start_run(socket, "--late-after", "2",
                                        "--end-after", "5")
                os.kill(harness.ranks_of(run.pid)[victim], signal.SIGSTOP)
                line, err = self.expect_end(run, socket)
                self.assertRegex(line, rf"rank {victim} is late: .*\("
                                       r"(step \d+|between).*stopped.*"
                                       r"--end-after")
                self.assertNotIn(f"rank {1 - victim} is late", err)
        self.expect_no_findings()

    def test_a_lost_gpu_ends_the_run_and_not_the_daemon(self):
        socket = self.cuda_daemon()
        run, log = self.start_run(socket)
        with open(os.path.join(self.node, "lost-gpu1"), "w"):
            pass
        line, _ = self.expect_end(run, socket, log, "a lost GPU")
        self.assertRegex(line, "rank 1: .*CUDA")
        self.assertIsNone(self.sluiced.poll())

    def test_a_sticky_error_of_the_driver_ends_the_run_with_its_name(self):
        socket = self.cuda_daemon()
        run, log = self.start_run(socket,
                                  settings=",fail=cuMemcpyAsync:1200:700")
        line, _ = self.expect_end(run, socket, log, "a sticky error")
        self.assertRegex(line, "rank [01]: .*CUDA_ERROR_ILLEGAL_ADDRESS")
        self.assertIsNone(self.sluiced.poll())

    def test_a_daemon_that_dies_and_returns_changes_nothing(self):
        with self.on_the_fakes():
            socket = self.keeper(name="cuda")
        calm, log = self.start_run(socket, steps=16)
        _, err = calm.communicate(timeout=200)
        self.assertEqual(calm.returncode, 0, err)
        undisturbed = [line["loss"] for line in harness.lines_of(log)]
        run, log = self.start_run(socket, steps=16)
        daemon, = harness.children_of(self.keeper_process.pid)
        os.kill(daemon, signal.SIGKILL)
        killed_at = len(harness.lines_of(log))
        _, err = run.communicate(timeout=200)
        self.assertEqual(run.returncode, 0, err)
        self.assertLess(killed_at, 16, "the run ended before the kill")
        losses = [line["loss"] for line in harness.lines_of(log)]
        self.assertEqual(losses, undisturbed)  # bit by bit
        self.wait_until(lambda: self.leased(socket) == 0,
                        "memory is still leased")
        self.expect_no_findings()


if __name__ == "__main__":
    unittest.main()
