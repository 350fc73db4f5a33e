"""Tests which activations a run keeps, swaps and recomputes, by class."""

import json
import socket
import subprocess
import unittest

import either_node
import harness

RUN = "--private --seq-len 1500 --steps 2".split()
FREE = ("norm1 q k v attention_residual norm2 ffn_up ffn_gate "
        "ffn_activation").split()


class Fractions(either_node.NodeTest):
    def kept(self, report):
        return sum(report["fractions"][name]["keep"] for name in FREE)

    def recomputed(self, report):
        return sum(report["fractions"][name]["recompute"] for name in FREE)

    def assert_same_run(self, report, other):
        self.assertEqual(report["plan"]["mismatches"], 0)
        for a, b in zip(report["losses"], other["losses"], strict=True):
            self.assertLess(abs(a / b - 1), 1e-6)

    def test_given_fractions_are_used_and_change_no_loss(self):
        plain = self.train(*RUN, "--alpha", "1")
        asked = self.train(
            *RUN, "--ranks", "2", "--alpha", "0.5", "--fractions",
            "q=0,k=0.25,norm2=0,ffn_up=keep:0.5,ffn_gate=keep:0.25+0.5")
        self.assert_same_run(asked, plain)
        of = asked["fractions"]
        self.assertEqual(of["q"], {"keep": 0, "swap": 0, "recompute": 1})
        self.assertEqual(of["k"]["swap"], 0.25)
        self.assertEqual(of["v"]["swap"], 0.5)
        self.assertEqual(of["ffn_up"],
                         {"keep": 0.5, "swap": 0, "recompute": 0.5})
        self.assertEqual(of["ffn_gate"],
                         {"keep": 0.25, "swap": 0.5, "recompute": 0.25})
        # A plan's price is what it recomputes, for the memory that it saves.
        self.assertEqual(plain["price"]["recomputed_bytes"], 0)
        self.assertEqual(plain["price"]["recompute_seconds"], 0)
        self.assertLessEqual(
            abs(plain["host_bytes"] - either_node.STAGE_BYTES
                - plain["price"]["host_bytes"]), 2**16)
        self.assertGreater(asked["price"]["hbm_bytes"], 0)
        self.assertGreater(asked["price"]["recompute_seconds"], 0)
        self.assertGreater(asked["price"]["length_gain"], 1)

    def test_classes_used_in_place_stay_on_the_gpu_if_asked(self):
        # Elements per token, of every layer or of one layer's scratch.
        row = {"layer_input": 3 * 64, "attention_output": 2 * 64,
               "lse": 2 * 4, "q": 2 * 64, "output_gradient": 64,
               "query_gradient": 64}
        plain = self.train(*RUN, "--alpha", "1")
        for name in row if harness.WHOLE else ("lse", "output_gradient"):
            elements = row[name]
            kept = self.train(*RUN, "--alpha", "1", "--fractions",
                              f"{name}=keep:1")
            self.assert_same_run(kept, plain)
            self.assertEqual(kept["fractions"][name]["keep"], 1)
            self.assertFalse(kept["settings"]["resident"])
            less = plain["host_bytes"] - kept["host_bytes"]
            # Leases consist of whole pieces of 64 KiB.
            self.assertGreater(less, 0)
            self.assertLessEqual(abs(less - 1500 * 4 * elements), 2**16, name)
        every = [*FREE, *row, "k", "v"]
        all_ = self.train(*RUN, "--fractions",
                          ",".join(f"{name}=keep:1" for name in set(every)))
        self.assert_same_run(all_, plain)
        self.assertEqual(all_["host_bytes"], either_node.STAGE_BYTES)
        self.assertFalse(any(f["swap"] for f in all_["fractions"].values()))

    def test_the_planner_leaves_room_for_classes_that_must_stay(self):
        given = ["--fractions", "layer_input=keep:1,output_gradient=keep:1,"
                 "query_gradient=keep:1,lse=keep:1"]
        roomy = self.train(*RUN, "--hbm", "64MiB", *given)
        least = self.train(*RUN, "--hbm", "64MiB", "--no-keep", *given)
        low, high = least["peak_hbm_bytes"], roomy["peak_hbm_bytes"]
        for part in (0.1, 0.5, 0.9) if harness.WHOLE else (0.5,):
            report = self.train(*RUN, "--hbm",
                                f"{int(low + part * (high - low))}B", *given)
            self.assert_same_run(report, roomy)
            self.assertEqual(report["fractions"]["layer_input"]["keep"], 1)
            self.assertLessEqual(report["peak_hbm_bytes"],
                                 report["hbm_bytes_per_gpu"])

    def test_free_gpu_memory_is_filled_with_kept_classes(self):
        roomy = self.train(*RUN, "--hbm", "64MiB")
        self.assertEqual(self.recomputed(roomy), 0)
        kept = self.kept(roomy)
        self.assertEqual(kept, 6, "all that can be kept")
        none = self.train(*RUN, "--hbm", "64MiB", "--no-keep")
        self.assertEqual(self.kept(none), 0)
        self.assertGreater(none["host_bytes"], roomy["host_bytes"])
        self.assertLess(none["peak_hbm_bytes"], roomy["peak_hbm_bytes"])
        self.assert_same_run(none, roomy)
        # The memory is between the least that the run needs and the most that
        # it can use.
        low = none["peak_hbm_bytes"]
        high = roomy["peak_hbm_bytes"]
        some = []
        for part in (0.4, 0.6, 0.8) if harness.WHOLE else (0.6,):
            hbm = int(low + part * (high - low))
            report = self.train(*RUN, "--hbm", f"{hbm}B")
            self.assert_same_run(report, roomy)
            self.assertLessEqual(report["peak_hbm_bytes"],
                                 report["hbm_bytes_per_gpu"])
            some.append(self.kept(report))
        self.assertTrue(any(0 < k < kept for k in some), some)

    def test_little_host_memory_recomputes_the_cheapest_classes(self):
        whole = self.train(*RUN, "--hbm", "64MiB", "--no-keep")
        least = self.train(*RUN, "--hbm", "64MiB", "--alpha", "0")
        budget = (whole["host_bytes"] + least["host_bytes"]) // 2
        daemon = self.daemon(extra=f"[budgets]\nprincipal_host_bytes = "
                                   f"\"{budget}B\"\n")
        report = self.train("--socket", daemon, *RUN[1:], "--hbm", "64MiB",
                            "--no-keep")
        self.assert_same_run(report, whole)
        self.assertLessEqual(report["host_bytes"], budget)
        self.assertGreater(report["host_bytes"], 0.85 * budget)
        # Classes have different fractions: at most one class is swapped in
        # part.
        swaps = [report["fractions"][name]["swap"] for name in FREE]
        self.assertIn(0, swaps)
        self.assertIn(1, swaps)

    def test_the_node_with_less_memory_bounds_all_ranks(self):
        flags = ["--seq-len", "1500", "--steps", "2", "--no-keep"]
        whole = self.train("--private", *flags, "--ranks", "2", "--alpha", "1")
        least = self.train("--private", *flags, "--ranks", "2", "--alpha", "0")
        few = int(0.45 * least["host_bytes"] + 0.05 * whole["host_bytes"])
        sockets = [self.daemon(), self.daemon(
            name="tight", extra=f"[budgets]\nprincipal_host_bytes = "
                  f"\"{few}B\"\n")]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        runs = [self.start(
            [harness.TRAIN, "train", *harness.MODEL, *flags, "--json",
             "--data", self.text, "--hbm", "6MiB", "--socket", daemon,
             # NCCL's fake identifies a GPU by its number, regardless of the
             # node.
             "--gpu", str(rank)],
            variables={"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                       "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": port},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for rank, daemon in enumerate(sockets)]
        ends = [run.communicate(timeout=120) for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], ends)
        report = json.loads(ends[0][0])
        self.assert_same_run(report, whole)
        # Rank 0's node has room for everything.
        of = report["fractions"]
        self.assertEqual(of["norm1"]["swap"], 1)
        self.assertLess(min(of[name]["swap"] for name in "qkv"), 1)

    def test_keeping_more_than_the_gpu_holds_is_refused_at_the_start(self):
        low = self.train(*RUN, "--hbm", "64MiB", "--no-keep")["peak_hbm_bytes"]
        report = self.train(
            *RUN, "--hbm", f"{low + 2**19}B", "--fractions",
            ",".join(f"{name}=keep:1" for name in FREE if name not in "qkv"),
            status=3)
        self.assertEqual(report["limited_by"], "gpu_memory")
        self.assertIn("rank 0 is asked to keep", report["message"])
        self.assertEqual(report["steps"], 0)


if __name__ == "__main__":
    unittest.main()
