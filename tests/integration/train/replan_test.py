"""Jobs that share a node are planned together. A job that joins makes the
running jobs smaller at their next step, and a job that leaves lets them grow
again. No job's losses change.

Swapped rows and recomputed rows pass through the kernels in separate pieces,
so fp32 losses are bit-identical only if the pieces are the same. Here a job
first swaps everything, then only what it must; in both cases the pieces are
whole chunks.
"""

import json
import os
import shutil
import signal
import subprocess
import unittest

import either_node
import harness

# The learning rate is low, because at the default rate differences of rounding
# reach 1e-4 after some 100 steps, and a job runs until the other has finished.
RUN = "--seq-len 500 --hbm 16MiB --no-keep --lr 5e-5".split()


class Replan(either_node.NodeTest):
    extent = "64KiB"
    planned = {}  # flags -> host bytes, shared by all tests

    def planning(self, socket, job):
        """Returns the daemon's entry in "planning" for a job, or None."""
        for each in self.status(socket)["planning"]:
            if each["job"] == job:
                return each
        return None

    def planned_host_bytes(self, *flags):
        """Returns the host bytes of the job's plan."""
        if flags in self.planned:
            return self.planned[flags]
        socket = self.daemon()
        self.train("--socket", socket, *RUN, *flags, "--steps", "1")
        plan = max(self.status(socket)["plans"], key=lambda p: p["id"])
        self.end(self.sluiced)
        shutil.rmtree(self.path("run"))
        self.planned[flags] = sum(rank["host_bytes"] for rank in plan["ranks"])
        return self.planned[flags]

    def node_that_holds(self, running, joining):
        """Starts a daemon that grants one user enough host memory for
        `joining` with all rows swapped plus the least that `running` needs."""
        least = self.planned_host_bytes(*running, "--alpha", "0")
        whole = self.planned_host_bytes(*joining, "--alpha", "1")
        ranks = 3 if "--ranks" in running else 2
        return self.daemon(extra=f"[budgets]\nprincipal_host_bytes = "
                                 f"\"{least + whole + ranks * 65536}B\"\n")

    def start_job(self, socket, name, *flags):
        log = self.path(name + ".jsonl")
        process = self.start(
            [harness.TRAIN, "train", *harness.MODEL, *RUN, "--json",
             "--socket", socket, "--job", name, "--data", self.text,
             "--log-jsonl", log, *flags], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        return process, log

    def start_long_job(self, socket, name, *flags):
        """Starts a job that trains until it is stopped."""
        process, log = self.start_job(socket, name, "--steps", "100000",
                                      *flags)
        self.wait_until(lambda: len(harness.lines_of(log)) >= 2,
                        f"{name} does not train")
        return process, log

    def finish(self, process, interrupt=False):
        """Waits for the end of the job and returns its report."""
        if interrupt:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=1000)
        self.assertEqual(process.returncode, 130 if interrupt else 0, err)
        return json.loads(out)

    def undisturbed(self, steps, *flags):
        return self.train("--private", *RUN, *flags, "--steps",
                          str(steps))["losses"]

    def changes(self, log):
        lines = harness.lines_of(log)
        return lines[-1]["plan_changes"] if lines else 0

    def test_a_join_shrinks_a_job_and_a_leave_grows_it_again(self):
        two = ("--ranks", "2")
        socket = self.node_that_holds(two, ())
        first, log = self.start_long_job(socket, "first", *two)
        before = harness.lines_of(log)[-1]["host_bytes"]
        second, _ = self.start_job(socket, "second", "--alpha", "1",
                                   "--steps", "3")
        joined = self.finish(second)
        self.wait_until(lambda: self.changes(log) == 2,
                        "the job that stays does not grow again")
        report = self.finish(first, interrupt=True)
        smaller, larger = report["plan_changes"]
        self.assertTrue(smaller["taken"] and larger["taken"], report)
        self.assertLess(smaller["alpha"], 0.01)
        self.assertEqual(larger["alpha"], 1)
        lines = harness.lines_of(log)
        hosts = [line["host_bytes"] for line in lines]
        self.assertEqual(hosts[-1], before)
        self.assertLess(min(hosts), before)
        self.assertEqual(lines[-1]["plan_mismatches"], 0)
        self.assertEqual(joined["alpha"], 1)
        self.assertEqual(joined["losses"],
                         self.undisturbed(3, "--alpha", "1"))
        self.assertEqual(report["losses"],
                         self.undisturbed(report["steps"], *two))
        self.assertEqual(self.leased(socket), 0)

    def test_the_report_shows_the_last_plan(self):
        socket = self.node_that_holds((), ())
        first, log = self.start_long_job(socket, "first")
        second, _ = self.start_long_job(socket, "second", "--alpha", "1")
        # The change is logged at the end of a step, which may take longer than
        # the start of the second job.
        self.wait_until(lambda: self.changes(log) == 1,
                        "the first job does not make room")
        report = self.finish(first, interrupt=True)
        self.finish(second, interrupt=True)
        self.assertLess(report["alpha"], 0.01)
        self.assertGreater(sum(f["recompute"] for f in
                               report["fractions"].values()), 0)

    def test_a_full_node_makes_room_for_a_jobs_calibration(self):
        least = self.planned_host_bytes("--alpha", "0")
        socket = self.daemon(extra=f"[budgets]\nprincipal_host_bytes = "
                                   f"\"{2 * least + 256 * 1024}B\"\n")
        first, log = self.start_long_job(socket, "first")
        second, _ = self.start_job(socket, "second", "--steps", "2")
        joined = self.finish(second)
        self.assertEqual(joined["steps"], 2)
        self.wait_until(lambda: not self.status(socket)["planning"] and
                        self.changes(log) >= 2,
                        "the first job takes no changed plan")
        texts = [e["text"] for e in self.status(socket)["events"]]
        self.assertTrue(any("waits for" in t and "may give back" in t
                            for t in texts), texts)
        report = self.finish(first, interrupt=True)
        self.assertTrue(all(c["taken"] for c in report["plan_changes"]))
        alone = self.undisturbed(report["steps"])
        for ours, whole in zip(report["losses"], alone, strict=True):
            self.assertAlmostEqual(ours, whole, delta=1e-6 * whole)
        self.assertEqual(self.leased(socket), 0)

    def waiting_pair(self):
        """Starts a job, stops it before it can take its smaller plan, and
        starts a second job, which waits until the first takes that plan."""
        socket = self.node_that_holds((), ())
        first, log = self.start_long_job(socket, "first")
        rank = harness.ranks_of(first.pid)[0]
        os.kill(rank, signal.SIGSTOP)
        self.addCleanup(self.resume, rank)
        second, _ = self.start_job(socket, "second", "--alpha", "1",
                                   "--steps", "2")
        self.wait_until(
            lambda: (self.planning(socket, "second") or {}).get("state") ==
            "waiting", "the second job does not wait")
        return socket, first, rank, log, second

    def test_a_change_that_cannot_be_planned_leaves_a_job_as_it_was(self):
        # A daemon with its own copy of the worker, which the test removes.
        own = self.path("bin")
        os.mkdir(own)
        for name in ("sluiced", "sluice-worker", "sluicectl"):
            shutil.copy(os.path.join(harness.BIN, name), own)
        whole = harness.BIN
        self.addCleanup(setattr, harness, "BIN", whole)
        harness.BIN = own
        _, first, rank, log, second = self.waiting_pair()
        harness.BIN = whole  # for the daemons that are started later
        os.remove(os.path.join(own, "sluice-worker"))
        self.resume(rank)
        out, _ = second.communicate(timeout=1000)
        self.assertEqual(json.loads(out)["limited_by"], "host_memory")
        steps = len(harness.lines_of(log))
        self.wait_until(lambda: len(harness.lines_of(log)) > steps + 1,
                        "the job that runs stands still")
        report = self.finish(first, interrupt=True)
        change = report["plan_changes"][0]
        self.assertFalse(change["taken"])
        self.assertRegex(change["note"], "not taken .*worker.*the one before")
        self.assertEqual(report["alpha"], 1)
        self.assertEqual(report["losses"], self.undisturbed(report["steps"]))

    @staticmethod
    def resume(pid):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def test_a_waiting_job_names_the_other_and_may_be_killed(self):
        socket, first, rank, log, second = self.waiting_pair()
        self.assertEqual(self.planning(socket, "second")["waiting_for"],
                         ["job first"])
        self.assertEqual(self.planning(socket, "first")["state"], "changing")
        os.kill(harness.ranks_of(second.pid)[0], signal.SIGKILL)
        second.communicate(timeout=harness.PATIENCE_S)
        self.resume(rank)
        # The job may first take its smaller plan, because the daemon plans for
        # the other job's end a moment later.
        self.wait_until(lambda: self.settled_alpha(socket) == 1,
                        "the job that stays does not get its memory back")
        steps = len(harness.lines_of(log))
        self.wait_until(lambda: len(harness.lines_of(log)) > steps + 1,
                        "the job that stays stands still")
        report = self.finish(first, interrupt=True)
        self.assertEqual(report["alpha"], 1)
        self.assertEqual(report["losses"], self.undisturbed(report["steps"]))
        self.assertEqual(self.leased(socket), 0)

    def settled_alpha(self, socket):
        """Returns the alpha of the only job's plan, or None while the daemon
        plans."""
        status = self.status(socket)
        if status["planning"]:
            return None
        current = status["jobs"][0]["plan_id"]
        return next(plan["ranks"][0]["alpha"] for plan in status["plans"]
                    if plan["id"] == current)

    def test_a_job_killed_before_its_change_lets_the_other_in(self):
        socket, first, rank, _, second = self.waiting_pair()
        os.kill(rank, signal.SIGKILL)
        first.communicate(timeout=harness.PATIENCE_S)
        report = self.finish(second)
        self.assertEqual(report["losses"],
                         self.undisturbed(2, "--alpha", "1"))
        self.assertEqual(self.leased(socket), 0)


if __name__ == "__main__":
    unittest.main()
