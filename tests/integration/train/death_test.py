"""A rank that dies takes its run with it, quickly, and nothing else; a
daemon that dies takes nothing."""

import os
import signal
import statistics
import subprocess
import time
import unittest

import harness

LONG = "--seq-len 500 --steps 100000".split()


class Death(harness.TrainTest):
    def start_run(self, socket, name, *more):
        log = self.path(name + ".jsonl")
        process = self.start(
            [harness.TRAIN, "train", *harness.MODEL, *LONG, "--socket", socket,
             "--job", name, "--data", self.text, "--log-jsonl", log, *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 3, 60,
                        f"{name} does not train")
        return process, log

    def test_kill_9_ends_the_other_ranks_and_no_other_job(self):
        socket = self.daemon(gpus=3)
        victim, _ = self.start_run(socket, "victim", "--ranks", "2", "--hbm",
                                   "16MiB")
        before = self.leased(socket)
        other, log = self.start_run(socket, "other", "--hbm", "16MiB")
        other_holds = self.leased(socket) - before
        ranks = harness.ranks_of(victim.pid)
        os.kill(ranks[1], signal.SIGKILL)
        killed = time.monotonic()
        _, err = victim.communicate(timeout=20)
        self.assertLess(time.monotonic() - killed, 5)
        self.assertEqual(victim.returncode, 1)
        self.assertIn("error: rank 1 ended with signal 9", err)
        self.assertEqual(err.count("error:"), 1, err)
        self.wait_until(lambda: self.leased(socket) == other_holds, 1,
                        "the dead job's memory is not free")
        steps = len(harness.lines_of(log))
        self.wait_until(lambda: len(harness.lines_of(log)) > steps + 2, 30,
                        "the other job stands still")
        self.assertIsNone(other.poll())

    def test_a_dead_rank_frees_its_memory_within_a_second(self):
        socket = self.daemon(gpus=1)
        run, _ = self.start_run(socket, "alone", "--hbm", "16MiB")
        os.kill(harness.ranks_of(run.pid)[0], signal.SIGKILL)
        self.wait_until(lambda: self.leased(socket) == 0, 1,
                        "a dead rank's memory is not free")

    def test_a_daemon_killed_in_a_run_neither_ends_nor_slows_it(self):
        steps = 40
        flags = [*harness.MODEL, "--ranks", "2", "--seq-len", "500",
                 "--steps", str(steps), "--data", self.text]
        whole = self.train("--private", *flags[len(harness.MODEL):])
        socket = self.daemon()
        log = self.path("log")
        run = self.start(
            [harness.TRAIN, "train", *flags, "--socket", socket,
             "--log-jsonl", log], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 5, 60,
                        "the run does not train")
        self.sluiced.kill()
        alive_until = len(harness.lines_of(log))
        _, err = run.communicate(timeout=120)
        self.assertEqual(run.returncode, 0, err)
        lines = harness.lines_of(log)
        self.assertLess(alive_until, steps, "it was over before the kill")
        self.assertEqual([line["loss"] for line in lines], whole["losses"])
        seconds = [line["seconds"] for line in lines]
        before = statistics.median(seconds[1:alive_until])
        after = statistics.median(seconds[alive_until + 1:])
        self.assertLess(after, 10 * before)

    def test_a_job_as_large_as_the_one_before_it_fits_again(self):
        socket = self.daemon(gpu_memory="16MiB", host_memory="16MiB")
        results = [self.train("--socket", socket, "--ranks", "2", "--seq-len",
                              "3000", "--steps", "1")
                   for _ in range(3)]
        for result in results:
            self.assertGreater(result["host_bytes"], 0.8 * 16 * 2**20)
            self.assertEqual(result["host_bytes"], results[0]["host_bytes"])
        self.assertEqual(self.leased(socket), 0)

    def test_a_killed_launcher_leaves_nothing(self):
        socket = self.daemon(gpus=2)
        run, _ = self.start_run(socket, "orphan", "--ranks", "2", "--hbm",
                                "16MiB")
        os.kill(run.pid, signal.SIGKILL)
        self.wait_until(lambda: self.leased(socket) == 0, 5,
                        "ranks outlived their launcher")

    def test_ctrl_c_saves_and_a_private_daemon_goes_too(self):
        log, save = self.path("steps"), self.path("saved")
        temporary = self.path("tmp")
        os.mkdir(temporary)
        process = subprocess.Popen(
            [harness.TRAIN, "train", *harness.MODEL, *LONG, "--private",
             "--ranks", "2", "--data", self.text, "--log-jsonl", log,
             "--save", save], stderr=subprocess.PIPE, text=True,
            env={**harness.clean_environment(), "TMPDIR": temporary})
        self.addCleanup(self.end, process)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 2, 60, "starts")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130)
        done = harness.lines_of(log)[-1]["step"]
        self.assertEqual(os.listdir(save), [f"checkpoint-{done}"])
        self.assertEqual(os.listdir(temporary), [])


if __name__ == "__main__":
    unittest.main()
