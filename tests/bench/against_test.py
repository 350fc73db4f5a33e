#!/usr/bin/env python3
"""`./dev bench --against` alternates the two builds, repeats a benchmark with a
row that looks slower, and reports the result."""

import contextlib
import io
import json
import os
import tempfile
import types
import unittest
from unittest import mock

import against
import compare
import programs


def entry(name, value):
    return {"name": name, "value": value, "unit": "s", "target": None,
            "better": "lower", "detail": ""}


class Turns(unittest.TestCase):

    def alternate(self, seconds, rounds=3):
        """Returns (the sides in the order they ran, the comparisons, the
        failed benchmarks, stderr). `seconds`: {side: value or exception}."""
        order, comparisons = [], []

        def run(folder, name, output):
            order.append(folder)
            value = seconds[folder]
            if isinstance(value, Exception):
                raise value
            return [entry(name, value)]

        with mock.patch.object(programs, "run", run), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            failed = against.alternate(
                ["ipc"], (("old", "old"), ("present", "new")), rounds,
                comparisons, types.SimpleNamespace(name="log"))
        return order, comparisons, failed, said.getvalue()

    def test_every_round_starts_with_the_other_side(self):
        order, [comparison], failed, said = self.alternate(
            {"old": 1, "new": 1})
        self.assertEqual(order, ["old", "new", "new", "old", "old", "new"])
        self.assertEqual(len(comparison.rounds), 3)
        self.assertEqual(failed, [])
        self.assertIn("bench: ipc, round 2 of 3, present:", said)

    def test_a_row_that_looks_slower_is_measured_again(self):
        order, [comparison], _, said = self.alternate({"old": 1, "new": 2})
        self.assertEqual(len(comparison.rounds), 6)
        self.assertEqual(len(order), 12)
        self.assertIn("3 rounds more", said)
        slower, verdict = against.judge([comparison])
        self.assertEqual(len(slower), 1)
        self.assertTrue(verdict.startswith("1 row of 1 with median ratio"))

    def test_a_benchmark_that_fails_is_named(self):
        _, _, failed, said = self.alternate(
            {"old": 1, "new": programs.Failed("it ended with status 3")})
        self.assertEqual(failed, ["ipc"])
        self.assertIn("error: bench: ipc: it ended with status 3", said)

    def test_an_interrupt_keeps_the_finished_rounds(self):
        comparisons, runs = [], iter([1, 1, 1])

        def run(*_):
            value = next(runs, None)
            if value is None:
                raise KeyboardInterrupt
            return [entry("row", value)]

        with mock.patch.object(programs, "run", run), \
                contextlib.redirect_stderr(io.StringIO()), \
                self.assertRaises(KeyboardInterrupt):
            against.alternate(["ipc"], (("old", ""), ("present", "")), 3,
                              comparisons, types.SimpleNamespace(name="log"))
        self.assertEqual(len(comparisons[0].rounds), 1)


class Report(unittest.TestCase):

    def test_benchmarks_that_one_side_lacks_are_named(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            kept = against.shared(
                ["ipc", "grant"], {"bench-ipc", "bench-old", "all",
                                   "tests/bench/bench-grant"},
                types.SimpleNamespace(name="v1"))
        self.assertEqual(kept, ["ipc"])
        self.assertIn("bench: grant: v1 lacks it", said.getvalue())
        self.assertIn("bench: old: only v1 has it", said.getvalue())

    def test_the_json_has_no_infinities(self):
        comparison = compare.Comparison("ipc")
        comparison.add([entry("row", 0), entry("gone", 1)], [entry("row", 1)])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            against.write_json(path, types.SimpleNamespace(commit="c0ffee"),
                               [comparison], "1 row", True)
            with open(path, encoding="utf-8") as file:
                found = json.loads(file.read(), parse_constant=self.fail)
        self.assertEqual(found["against"], "c0ffee")
        self.assertIsNone(found["rows"][0]["ratio"]["median"])
        self.assertEqual(found["not_in_every_round"],
                         [{"bench": "ipc", "name": "gone", "rounds": 1,
                           "before": 1, "after": 0}])

    def test_the_table_shows_both_medians_and_the_verdict(self):
        comparison = compare.Comparison("ipc")
        for _ in range(3):
            comparison.add([entry("row", 1)], [entry("row", 1.2)])
        with contextlib.redirect_stdout(io.StringIO()) as out:
            against.show([comparison], (("v1", ""), ("present", "")))
        self.assertRegex(out.getvalue(), r"ipc: row +1 +1\.2 +s +1\.200 +"
                         r"1\.200 +1\.200 +SLOWER")


if __name__ == "__main__":
    unittest.main()
