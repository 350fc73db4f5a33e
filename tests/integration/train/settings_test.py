"""Settings of a step that the trainer chooses if the user does not: chunk,
prefetch depth, backward's order, and whether everything stays on the GPU."""

import json
import re
import statistics
import unittest

import harness

# Two GPUs behind one link that is so slow that it determines a step's time.
SLOW = """\
gpu_links = ["link", "link"]
[[sim.links]]
name = "link"
h2d_bytes_per_s = 1e7
d2h_bytes_per_s = 1e7
"""
OPEN = "--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --threads 1"


class Settings(harness.TrainTest):
    def run_open(self, *flags, node=("--private",)):
        """Trains without --chunk; returns the report and stderr."""
        code, out, err = self.run_train(*OPEN.split(), *node, "--data",
                                        self.text, "--json", *flags)
        self.assertEqual(code, 0, err)
        return json.loads(out), err

    def test_everything_stays_on_the_gpu_where_it_fits_and_nothing_moves(self):
        report, said = self.run_open("--seq-len", "700", "--steps", "2")
        settings = report["settings"]
        self.assertTrue(settings["resident"])
        self.assertEqual(report["host_bytes"], 0)
        for name, of in report["fractions"].items():
            self.assertEqual((of["keep"], of["swap"]), (1, 0), name)
        self.assertIn("the fastest of those tried", settings["why"])
        self.assertRegex(said, r"(?m)^cut +chunk \d+, everything kept")
        given = self.train("--private", "--seq-len", "700", "--steps", "2",
                           "--alpha", "1")
        self.assertNotIn("fastest", given["settings"]["why"])
        for open_, moved in zip(report["losses"], given["losses"], strict=True):
            self.assertLess(abs(open_ / moved - 1), 1e-6)

    def test_ranks_agree_and_a_small_gpu_gets_chunks_that_fit(self):
        report, _ = self.run_open("--seq-len", "6000", "--steps", "1",
                                  "--ranks", "2", "--hbm", "8MiB")
        settings = report["settings"]
        self.assertFalse(settings["resident"])
        self.assertLess(settings["chunk"], 6000)
        self.assertGreater(report["host_bytes"], 0)
        self.assertEqual(report["plan"]["mismatches"], 0)
        self.assertRegex(settings["why"], "does not fit|about")

    def test_ranks_on_two_numa_nodes_use_the_memory_of_both(self):
        socket = self.daemon(host_memory="32MiB", host_pool="16MiB",
                             sim="numa_nodes = 2")
        flags = ["--seq-len", "12000", "--steps", "1", "--ranks", "2", "--hbm",
                 "5MiB", "--no-keep", "--rerun", "0"]
        report, _ = self.run_open(*flags, node=("--socket", socket))
        self.assertGreater(report["host_bytes"], 16 << 20)
        self.assertGreater(report["settings"]["chunk"], 64)
        self.assertIn("the fastest of those tried", report["settings"]["why"])

    def test_a_chunk_that_the_pool_has_no_room_to_try_is_left_out(self):
        # --host promises more than the pool has.
        socket = self.daemon(host_memory="16MiB", host_pool="4MiB")
        code, _, err = self.run_train(
            *OPEN.split(), "--socket", socket, "--data", self.text, "--seq-len",
            "40000", "--steps", "1", "--hbm", "64MiB", "--host", "1GiB",
            "--no-keep")
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"alpha 0 \(the least\) needs .* of host memory")

    def test_a_lone_rank_counts_on_all_of_a_shared_link(self):
        socket = self.daemon(sim=SLOW)
        log = self.path("log.jsonl")
        report, _ = self.run_open(
            "--seq-len", "2000", "--steps", "3", "--hbm", "2500KiB",
            "--log-jsonl", log, node=("--socket", socket))
        self.assertFalse(report["settings"]["resident"])
        about = [float(s) for s in re.findall(r"about ([\d.]+) s",
                                              report["settings"]["why"])]
        seconds = [line["seconds"] for line in harness.lines_of(log)
                   if "seconds" in line]
        self.assertLess(min(about), 1.5 * statistics.median(seconds))

    def test_given_settings_are_not_measured(self):
        report, said = self.run_open(
            "--seq-len", "700", "--steps", "1", "--chunk", "100",
            "--backward-order", "queries", "--prefetch", "3")
        self.assertEqual(
            report["settings"],
            {"chunk": 100, "prefetch": 3, "backward_order": "queries",
             "resident": False, "rerun_chunks": 0, "rerun_layers": 1,
             "kept": 0, "why": None})
        self.assertIsNone(re.search(r"(?m)^cut", said))

    def test_with_a_given_chunk_the_order_that_moves_less_is_taken(self):
        # With four ranks each rank has as many kv heads as heads.
        for ranks, order in (("1", "queries"), ("4", "keys")):
            with self.subTest(ranks=ranks):
                report, said = self.run_open(
                    "--seq-len", "400", "--steps", "1", "--chunk", "100",
                    "--ranks", ranks)
                self.assertEqual(report["settings"]["backward_order"], order)
                self.assertRegex(said, rf"(?m)^cut .* {order} outer")

    def test_the_order_that_has_the_given_classes_is_taken(self):
        flags = ["--seq-len", "400", "--steps", "1", "--chunk", "100",
                 "--fractions"]
        for name, order in (("key_gradient", "queries"),
                            ("query_gradient", "keys")):
            report, _ = self.run_open(*flags, name + "=keep:1")
            self.assertEqual(report["settings"]["backward_order"], order)
        code, _, err = self.run_train(
            "--private", *flags, "key_gradient=keep:1,query_gradient=keep:1",
            "--data", self.text)
        self.assertEqual(code, 2)
        self.assertIn("no class of this step", err)

    def test_a_resumed_run_keeps_its_settings(self):
        save = self.path("save")
        flags = ["--seq-len", "700", "--save", save]
        first, _ = self.run_open(*flags, "--steps", "1")
        again, said = self.run_open(*flags, "--steps", "2", "--resume", save)
        for name in ("chunk", "prefetch", "backward_order", "resident"):
            self.assertEqual(again["settings"][name], first["settings"][name])
        self.assertIn("as before", said)

    def test_a_resumed_run_obeys_its_flags_before_the_saved_settings(self):
        save = self.path("save")
        length = ["--seq-len", "700"]
        first, _ = self.run_open(*length, "--steps", "1", "--save", save)
        self.assertTrue(first["settings"]["resident"])
        for flags, name, value in (
                (["--prefetch", "3"], "prefetch", 3),
                (["--chunk", "100", "--rerun", "auto"], "chunk", 100),
                (["--no-keep"], "resident", False),
                (["--fractions", "norm2=0"], "resident", False),
                (["--rerun", "1", "--rerun-layers", "2"], "rerun_layers", 2)):
            with self.subTest(flags=flags):
                again, said = self.run_open(*length, *flags, "--steps", "2",
                                            "--resume", save)
                self.assertEqual(again["settings"][name], value)
                self.assertNotIn("as before", said)

    def test_a_run_goes_on_with_fewer_chunks_than_ran_again_before(self):
        save = self.path("save")
        self.run_open("--seq-len", "700", "--chunk", "100", "--rerun", "1",
                      "--steps", "1", "--save", save)
        self.run_open("--seq-len", "150", "--steps", "2", "--resume", save)

    def test_with_little_host_memory_the_first_chunks_run_again(self):
        flags = ["--seq-len", "1500", "--chunk", "100", "--no-keep"]
        whole, _ = self.run_open(*flags, "--alpha", "0", "--steps", "2")
        save = self.path("save")
        flags += ["--rerun", "auto", "--save", save, "--host",
                  f"{whole['host_bytes'] * 95 // 100}B"]
        first, said = self.run_open(*flags, "--steps", "1")
        settings = first["settings"]
        self.assertGreater(settings["rerun_chunks"], 0)
        self.assertLess(settings["rerun_chunks"], 15)
        self.assertLessEqual(first["host_bytes"],
                             whole["host_bytes"] * 0.95)
        self.assertRegex(said, r"(?m)^cut .*the first \d+ chunks run again")
        self.assertEqual(first["plan"]["mismatches"], 0)
        again, said = self.run_open(*flags, "--steps", "2", "--resume", save)
        self.assertEqual({**again["settings"], "why": None},
                         {**settings, "why": None})
        self.assertNotIn("planned anew", said)
        self.assertEqual(first["losses"] + again["losses"], whole["losses"])

    def plan_of(self, save, step):
        with open(f"{save}/checkpoint-{step}/plan-0-of-1.json",
                  encoding="utf-8") as file:
            return file.read()

    def test_a_run_that_cannot_keep_everything_says_so_and_swaps(self):
        save = self.path("save")
        flags = ["--seq-len", "700", "--save", save]
        first, _ = self.run_open(*flags, "--steps", "1", "--hbm", "64MiB")
        self.assertTrue(first["settings"]["resident"])
        moved, _ = self.run_open("--seq-len", "700", "--steps", "1",
                                 "--no-keep", "--chunk",
                                 str(first["settings"]["chunk"]))
        hbm = (first["peak_hbm_bytes"] + moved["peak_hbm_bytes"]) // 2
        flags += ["--hbm", f"{hbm}B", "--resume", save]
        # The saved settings are used, and their estimate is wrong for this
        # GPU.
        second, said = self.run_open(*flags, "--steps", "2")
        sentence = "not everything fits on the GPU after all"
        self.assertIn("the saved plan is not for this run (it was made with "
                      "64 MiB of GPU memory per rank", said)
        self.assertIn(sentence, said)
        self.assertIn(sentence, second["settings"]["why"])
        self.assertFalse(second["settings"]["resident"])
        self.assertGreater(second["host_bytes"], 0)
        # Guards against a replay of the saved plan that keeps everything.
        third, said = self.run_open(*flags, "--steps", "3")
        self.assertNotIn("planned anew", said)
        self.assertIn(sentence, said)
        self.assertEqual(self.plan_of(save, 3), self.plan_of(save, 2))
        self.assertFalse(third["settings"]["resident"])
        for name in ("host_bytes", "fractions", "peak_hbm_bytes"):
            self.assertEqual(third[name], second[name], name)
        for report in (second, third):
            self.assertEqual(report["plan"]["mismatches"], 0)

    def test_a_run_that_moves_nothing_replays_its_plan(self):
        save = self.path("save")
        flags = ["--seq-len", "700", "--save", save]
        first, _ = self.run_open(*flags, "--steps", "1")
        again, said = self.run_open(*flags, "--steps", "2", "--resume", save)
        self.assertNotIn("planned anew", said)
        self.assertEqual(self.plan_of(save, 2), self.plan_of(save, 1))
        for report in (first, again):
            self.assertTrue(report["settings"]["resident"])
            self.assertEqual(report["host_bytes"], 0)
            self.assertEqual(report["plan"]["mismatches"], 0)


if __name__ == "__main__":
    unittest.main()
