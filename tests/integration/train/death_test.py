"""A rank that dies ends its run quickly and nothing else. A daemon that dies
ends no run."""

import os
import random
import signal
import socket as socketlib
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
        self.wait_until(lambda: len(harness.lines_of(log)) >= 3,
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
        _, err = victim.communicate(timeout=harness.PATIENCE_S)
        # The launcher gives the other ranks 4 s to end.
        self.assertLess(time.monotonic() - killed, 30)
        self.assertEqual(victim.returncode, 1)
        self.assertIn("error: rank 1 ended with signal 9", err)
        self.assertEqual(err.count("error:"), 1, err)
        self.wait_until(lambda: self.leased(socket) == other_holds,
                        "the dead job's memory is not free")
        steps = len(harness.lines_of(log))
        self.wait_until(lambda: len(harness.lines_of(log)) > steps + 2,
                        "the other job stands still")
        self.assertIsNone(other.poll())

    def kill_a_rank(self, socket, temporary, rank, delay_s, *more,
                    after=lambda: True):
        """Starts two ranks and kills rank `rank` after `delay_s`, but not
        before `after` holds."""
        run = self.start(
            [harness.TRAIN, "train", *harness.MODEL, *LONG, "--socket", socket,
             "--ranks", "2", "--hbm", "16MiB", "--data", self.text, *more],
            {"TMPDIR": temporary}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        begun = time.monotonic()
        self.wait_until(lambda: rank in harness.ranks_of(run.pid),
                        "no rank starts")
        victim = harness.ranks_of(run.pid)[rank]
        time.sleep(max(0, begun + delay_s - time.monotonic()))
        self.wait_until(after, "the run does not reach the moment of the kill")
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        _, err = run.communicate(timeout=harness.PATIENCE_S)
        # The launcher gives the other ranks 4 s to end.
        self.assertLess(time.monotonic() - killed, 30)
        self.wait_until(lambda: self.leased(socket) == 0,
                        "the dead job's memory is not free")
        self.assertEqual(run.returncode, 1)
        self.assertIn(f"error: rank {rank} ended with signal 9", err)
        self.assertEqual(err.count("error:"), 1, err)
        self.assertEqual(os.listdir(temporary), [])

    def test_kill_9_at_any_moment_of_a_start_leaves_nothing(self):
        # The kills fall into rendezvous, leases, calibration, the wait for the
        # plan, and the first steps.
        socket = self.daemon()
        temporary = self.path("tmp")
        os.mkdir(temporary)
        moments = random.Random(9)
        slots = 8 if harness.WHOLE else 4
        for slot in range(slots):
            delay_s = 2.5 * (slot + moments.random()) / slots
            rank = moments.randrange(2)
            with self.subTest(delay_s=delay_s, rank=rank):
                self.kill_a_rank(socket, temporary, rank, delay_s)

    def test_kill_9_during_saves_leaves_whole_checkpoints(self):
        socket = self.daemon()
        temporary, save = self.path("tmp"), self.path("saved")
        os.mkdir(temporary)

        def whole():
            names = os.listdir(save) if os.path.isdir(save) else []
            return [name for name in names if not name.endswith(".tmp")]

        self.kill_a_rank(socket, temporary, 1, 0, "--save", save,
                         "--save-every", "1", after=lambda: len(whole()) > 2)
        for name in whole():
            self.assertIn("trainer_state.json",
                          os.listdir(os.path.join(save, name)))

    def test_an_evicted_job_saves_and_names_the_reason(self):
        socket = self.daemon()
        save = self.path("saved")
        run, log = self.start_run(socket, "unwanted", "--ranks", "2", "--hbm",
                                  "16MiB", "--save", save)
        subprocess.run(
            [os.path.join(harness.BIN, "sluicectl"), "--socket", socket,
             "evict", "unwanted", "--reason", "the node is drained"],
            env=harness.clean_environment(), capture_output=True, check=True)
        _, err = run.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(run.returncode, 1, err)
        self.assertEqual(err.count("error:"), 1, err)
        self.assertRegex(err, "error: .*evicted.*the node is drained")
        done = harness.lines_of(log)[-1]["step"]
        self.assertEqual(os.listdir(save), [f"checkpoint-{done}"])
        self.wait_until(lambda: self.leased(socket) == 0,
                        "an evicted job's memory is not free")

    def test_a_rank_of_torchrun_ends_with_130_when_interrupted(self):
        socket = self.daemon()
        log = self.path("steps")
        rank = self.start(
            [harness.TRAIN, "train", *harness.MODEL, *LONG, "--socket", socket,
             "--data", self.text, "--log-jsonl", log],
            {"RANK": "0", "WORLD_SIZE": "1"}, stderr=subprocess.PIPE)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 2,
                        "the run does not train")
        rank.send_signal(signal.SIGINT)
        rank.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(rank.returncode, 130)

    def test_a_signal_to_one_rank_interrupts_the_run(self):
        save = self.path("saved")
        run, log = self.start_run(self.daemon(), "told", "--ranks", "2",
                                  "--hbm", "16MiB", "--save", save)
        os.kill(harness.ranks_of(run.pid)[1], signal.SIGTERM)
        _, err = run.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(run.returncode, 130, err)
        done = harness.lines_of(log)[-1]["step"]
        self.assertEqual(os.listdir(save), [f"checkpoint-{done}"])

    def test_a_dead_ranks_memory_becomes_free(self):
        socket = self.daemon(gpus=1)
        run, _ = self.start_run(socket, "alone", "--hbm", "16MiB")
        os.kill(harness.ranks_of(run.pid)[0], signal.SIGKILL)
        self.wait_until(lambda: self.leased(socket) == 0,
                        "a dead rank's memory is not free")

    def test_a_daemon_killed_in_a_run_neither_ends_nor_slows_it(self):
        steps = 100
        flags = [*harness.MODEL, "--ranks", "2", "--seq-len", "500",
                 "--steps", str(steps), "--data", self.text]
        whole = self.train("--private", *flags[len(harness.MODEL):])
        socket = self.daemon()
        log = self.path("log")
        run = self.start(
            [harness.TRAIN, "train", *flags, "--socket", socket,
             "--log-jsonl", log], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 5,
                        "the run does not train")
        self.sluiced.kill()
        alive_until = len(harness.lines_of(log))
        _, err = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 0, err)
        lines = harness.lines_of(log)
        self.assertLess(alive_until, steps, "the run ended before the kill")
        self.assertEqual([line["loss"] for line in lines], whole["losses"])
        seconds = [line["seconds"] for line in lines]
        before = statistics.median(seconds[1:alive_until])
        after = statistics.median(seconds[alive_until + 1:])
        self.assertLess(after, 10 * before)

    def test_a_stopped_rank_is_named_and_the_run_goes_on_after_it(self):
        socket = self.daemon()
        run, log = self.start_run(socket, "napping", "--ranks", "2", "--hbm",
                                  "16MiB", "--late-after", "3")
        ranks = harness.ranks_of(run.pid)
        os.kill(ranks[1], signal.SIGSTOP)
        begun = time.monotonic()
        seen = ""
        while "rank 1 is stopped" not in seen:
            seen += run.stderr.readline()
        self.assertLess(time.monotonic() - begun, 30)
        self.assertRegex(seen, r"rank 1 is stopped by a signal or a debugger "
                               r"\((step \d+|between).*kill -CONT "
                               + str(ranks[1]))
        while "rank 1 is late" not in seen:
            seen += run.stderr.readline()
        self.assertRegex(seen, r"rank 1 is late: nothing new for .*"
                               r"\((step \d+|between)")
        self.assertNotIn("rank 0 is late", seen)
        os.kill(ranks[1], signal.SIGCONT)
        while "rank 1 goes on after" not in seen:
            seen += run.stderr.readline()
        steps = len(harness.lines_of(log))
        self.wait_until(lambda: len(harness.lines_of(log)) > steps + 2,
                        "the run stands still")

    def test_a_run_ends_when_a_rank_is_too_late_and_names_it(self):
        socket = self.daemon()
        run, _ = self.start_run(socket, "hung", "--ranks", "2", "--hbm",
                                "16MiB", "--late-after", "2", "--end-after",
                                "5")
        os.kill(harness.ranks_of(run.pid)[0], signal.SIGSTOP)
        _, err = run.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(run.returncode, 1, err)
        self.assertEqual(err.count("error:"), 1, err)
        self.assertRegex(err, r"error: rank 0 is late: .*\((step \d+|between)"
                              r".*stopped.*--end-after")
        self.wait_until(lambda: self.leased(socket) == 0,
                        "a hung job's memory is not free")

    def test_a_rank_of_torchrun_ends_if_the_other_is_stopped(self):
        socket = self.daemon()
        with socketlib.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = self.path("steps")
        ranks = [self.start(
            [harness.TRAIN, "train", *harness.MODEL, *LONG, "--socket", socket,
             "--ranks", "2", "--hbm", "16MiB", "--data", self.text,
             "--late-after", "2", "--end-after", "5", "--log-jsonl", log],
            {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
             "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(port)}, stderr=subprocess.PIPE)
            for rank in (0, 1)]
        self.wait_until(lambda: len(harness.lines_of(log)) >= 2,
                        "the run does not train")
        ranks[1].send_signal(signal.SIGSTOP)
        _, err = ranks[0].communicate(timeout=harness.PATIENCE_S)
        ranks[1].send_signal(signal.SIGCONT)
        self.assertEqual(ranks[0].returncode, 1, err)
        self.assertRegex(err, "rank 0 waits for another rank: nothing new for")
        self.assertRegex(err, r"error: rank 0: .*--end-after")

    def test_one_line_each_says_that_the_daemon_is_gone_and_back(self):
        socket = self.daemon()
        run, log = self.start_run(socket, "patient", "--ranks", "2", "--hbm",
                                  "16MiB")
        self.sluiced.kill()
        self.sluiced.wait()
        seen = ""
        while "the daemon at" not in seen:
            seen += run.stderr.readline()
        self.assertRegex(seen, f"the daemon at {socket} is gone .*steps go on; "
                               "no new plan or memory can be had")
        again = self.start(
            [os.path.join(harness.BIN, "sluiced"), "--config",
             self.path("run.toml"), "--runtime-dir", self.path("run")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertIn("ready", again.stdout.readline())
        while "is back" not in seen:
            seen += run.stderr.readline()
        self.assertRegex(seen, f"a daemon is back at {socket} after .*cannot "
                               "rejoin it; steps go on")
        steps = len(harness.lines_of(log))
        self.wait_until(lambda: len(harness.lines_of(log)) > steps + 2,
                        "the run stands still")
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual((seen + err).count("the daemon at"), 1)
        self.assertEqual((seen + err).count("is back"), 1)

    def test_a_job_as_large_as_the_one_before_it_fits_again(self):
        socket = self.daemon(gpu_memory="16MiB", host_memory="16MiB")
        def job(*flags):
            return self.train("--socket", socket, "--ranks", "2", "--seq-len",
                              "3000", "--steps", "1", *flags)

        results = [job("--alpha", "0.5")]
        # Without --alpha the planner chooses by measured times. This run adds
        # a calibration.
        chosen = job("--no-keep")
        self.assertGreater(chosen["host_bytes"], 0.6 * 16 * 2**20)
        results += [job("--alpha", "0.5") for _ in range(2)]
        for result in results:
            self.assertGreater(result["host_bytes"], 0.8 * 16 * 2**20)
            self.assertEqual(result["host_bytes"], results[0]["host_bytes"])
        self.assertEqual(self.leased(socket), 0)

    def test_a_killed_launcher_leaves_nothing(self):
        socket = self.daemon(gpus=2)
        run, _ = self.start_run(socket, "orphan", "--ranks", "2", "--hbm",
                                "16MiB")
        os.kill(run.pid, signal.SIGKILL)
        self.wait_until(lambda: self.leased(socket) == 0,
                        "ranks outlived their launcher")

    def test_ctrl_c_saves_and_ends_the_private_daemon(self):
        log, save = self.path("steps"), self.path("saved")
        temporary = self.path("tmp")
        os.mkdir(temporary)
        process = subprocess.Popen(
            [harness.TRAIN, "train", *harness.MODEL, *LONG, "--private",
             "--ranks", "2", "--data", self.text, "--log-jsonl", log,
             "--save", save], stderr=subprocess.PIPE, text=True,
            env={**harness.clean_environment(), "TMPDIR": temporary})
        self.addCleanup(self.end, process)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 2,
                        "the run does not train")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(process.returncode, 130)
        done = harness.lines_of(log)[-1]["step"]
        self.assertEqual(os.listdir(save), [f"checkpoint-{done}"])
        self.assertEqual(os.listdir(temporary), [])


if __name__ == "__main__":
    unittest.main()
