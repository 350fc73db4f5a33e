#!/usr/bin/env python3
"""Tests the demo's search for lengths, its processes and its HTML page."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../deploy/demo"))
import demo_test
import desk
import report
from processes import Processes
from search import longest
from trainer import RunFailed, follow_lines, read_object


class Search(unittest.TestCase):

    def test_the_search_is_within_a_sixteenth_of_the_limit(self):
        for limit in (3, 100, 511, 512, 1000, 2047, 2048, 43000):
            for start in (64, 512, 16384):
                found, refused = longest(limit.__ge__, start)
                self.assertLessEqual(found, limit)
                self.assertGreater(refused, limit)
                self.assertLessEqual(refused - found, max(1, found / 15))

    def test_the_search_tries_no_length_twice(self):
        asked = []
        longest(lambda n: asked.append(n) or n <= 5000, 512)
        self.assertEqual(len(asked), len(set(asked)))
        self.assertLessEqual(len(asked), 9)

    def test_the_search_finds_zero_if_nothing_fits(self):
        self.assertEqual(longest(lambda n: False, 512)[0], 0)

    def test_the_search_ends_at_its_limit_if_everything_fits(self):
        self.assertEqual(longest(lambda n: True, 512, limit=4096),
                         (4096, None))


class Children(unittest.TestCase):

    def test_stop_ends_the_whole_group(self):
        processes = Processes()
        shell = processes.start(
            ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE,
            text=True)
        grandchild = int(shell.stdout.readline())
        processes.stop_all()
        shell.stdout.close()
        self.assertIsNotNone(shell.returncode)
        self.assertFalse(is_running(grandchild))

    def test_a_child_that_ignores_terminate_is_killed(self):
        processes = Processes()
        processes.GRACE_S = 0.2
        child = processes.start(
            ["sh", "-c", "trap '' TERM; echo up; sleep 60; sleep 60"],
            stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        processes.stop(child)
        child.stdout.close()
        self.assertEqual(child.returncode, -9)


def is_running(pid):
    for _ in range(50):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return False
        except FileNotFoundError:
            return False
        time.sleep(0.02)
    return True


class Trainer(unittest.TestCase):

    def test_exit_status_and_printed_object_must_agree(self):
        self.assertTrue(read_object('noise\n{"fits": true}\n', True)["fits"])
        with self.assertRaises(RunFailed):
            read_object('{"fits": true}', False)
        with self.assertRaises(RunFailed):
            read_object("no object", True)

    def test_a_followed_log_loses_no_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path, seen, done = os.path.join(folder, "log"), [], \
                threading.Event()
            follower = threading.Thread(
                target=follow_lines, args=(path, seen.append, done))
            follower.start()
            with open(path, "w", encoding="utf-8") as file:
                for step in range(100):
                    text = json.dumps({"step": step})
                    file.write(text[:5])
                    file.flush()
                    file.write(text[5:] + "\n")
            done.set()
            follower.join()
        self.assertEqual([s["step"] for s in seen], list(range(100)))


class Desk(unittest.TestCase):

    def methods(self, sluice, alst, by="host_memory", mfu=0.45):
        return {"sluice": {"max_seq_len": sluice, "stopped_by": by,
                           "mfu_at_1m": mfu},
                "alst": {"max_seq_len": alst, "stopped_by": "gpu_memory",
                         "mfu_at_1m": 0.36}}

    def test_the_verdict_names_the_method_that_reaches_further(self):
        said = desk.verdict(self.methods(2 << 20, 3604480))
        self.assertIn("alst reaches further: 3,604,480 tokens against "
                      "sluice's 2,097,152", said)
        self.assertIn("Host memory is the limit of sluice", said)
        self.assertIn("sluice is at 45.0 % MFU, alst at 36.0 %", said)
        said = desk.verdict(self.methods(4 << 20, 3604480, "gpu_memory", None))
        self.assertIn("sluice reaches further: 4,194,304", said)
        self.assertNotIn("Host memory", said)
        self.assertNotIn("MFU", said)


class WholeRun(unittest.TestCase):

    def test_each_error_in_the_demos_report_is_found(self):
        method = dict.fromkeys(demo_test.METHOD_KEYS, 1)
        good = dict.fromkeys(demo_test.KEYS, 1) | {
            "methods": dict.fromkeys(
                ["keep-all", "recompute", "alst", "sluice"], method),
            "parity": {"max_abs_loss_diff": 1e-4},
            "sluice_over_recompute": 3.0, "sluice_over_alst": 1.4,
            "prometheus_scraped": True}
        self.assertEqual(list(demo_test.check(good)), [])
        bad = [{"sluice_over_recompute": 2.9}, {"sluice_over_alst": 1.3},
               {"prometheus_scraped": False},
               {"parity": {"max_abs_loss_diff": 2e-3}},
               {"parity": {"max_abs_loss_diff": float("nan")}},
               {"methods": good["methods"] | {"sluice": {}}}]
        for change in bad:
            self.assertEqual(len(list(demo_test.check(good | change))), 1,
                             change)
        for key in demo_test.KEYS:
            without = {k: v for k, v in good.items() if k != key}
            self.assertEqual(len(list(demo_test.check(without))), 1, key)


class Page(unittest.TestCase):

    def test_the_page_is_one_file_without_network(self):
        page = report.render({"a": "</script>"})
        self.assertNotIn("{{", page)
        self.assertIsNone(re.search(r"(src|href)\s*=|@import|url\(", page))
        self.assertNotIn("http://", page)
        self.assertNotIn("https://", page)
        self.assertEqual(page.count("</script>"), 2)

    def test_trace_times_start_at_the_first_event(self):
        event = {"name": "a.full", "start_s": 10.0, "end_s": 10.5}
        copy = dict(event, bytes=7, issued_s=9.0, start_s=10.25)
        block = {"offset": 64, "size": 128, "born_s": 1.0, "died_s": 10.25,
                 "segment": "b"}
        small = report.compact({
            "compute": [event], "h2d": [copy], "d2h": [], "blocks": [block],
            "hbm_bytes": 1000, "planned_bytes": 900})
        self.assertEqual(small["compute"], [[0, 500000, 0]])
        self.assertEqual(small["h2d"], [[250000, 500000, 0, 7, 0]])
        self.assertEqual(small["blocks"], [[64, 128, 0, 250000, 1]])
        self.assertEqual(small["micros"], 500000)


if __name__ == "__main__":
    unittest.main()
