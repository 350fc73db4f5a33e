#!/usr/bin/env python3
"""Tests the arithmetic of `./dev bench --against`."""

import math
import unittest

import compare


def entry(name, value, better="lower"):
    return {"name": name, "value": value, "unit": "s", "target": None,
            "better": better, "detail": ""}


def compared(*rounds, better="lower"):
    """Returns the comparison's row; `rounds` are pairs (before, after)."""
    comparison = compare.Comparison("x")
    for before, after in rounds:
        comparison.add([entry("row", before, better)],
                       [entry("row", after, better)])
    [row] = comparison.rows()
    return row


class Ratio(unittest.TestCase):

    def test_a_ratio_says_how_many_times_worse_a_value_is(self):
        self.assertAlmostEqual(compare.ratio(2.0, 2.2, "lower"), 1.1)
        self.assertAlmostEqual(compare.ratio(2.2, 2.0, "higher"), 1.1)
        self.assertAlmostEqual(compare.ratio(2.2, 1.1, "lower"), 0.5)

    def test_the_ratio_to_zero_shows_only_the_direction(self):
        self.assertEqual(compare.ratio(0, 0, "lower"), 1)
        self.assertEqual(compare.ratio(0, 0.5, "lower"), math.inf)
        self.assertEqual(compare.ratio(0.5, 0, "lower"), 0)
        self.assertEqual(compare.ratio(0, 0.5, "higher"), 0)
        self.assertEqual(compare.ratio(0.5, 0, "higher"), math.inf)
        self.assertEqual(compare.ratio(-1, -0.5, "lower"), math.inf)

    def test_a_solvers_tolerance_is_zero(self):
        self.assertEqual(compare.ratio(1e-16, 1.3e-8, "lower"), 1)
        self.assertEqual(compare.ratio(-1e-11, 1e-9, "lower"), 1)


class Quantiles(unittest.TestCase):

    def test_quantiles_are_linear_between_neighbours(self):
        values = [7, 1, 3, 5]
        self.assertEqual(compare.quantile(values, 0.5), 4)
        self.assertEqual(compare.quantile(values, 0.25), 2.5)
        self.assertEqual(compare.quantile(values, 0.75), 5.5)
        self.assertEqual(compare.quantile([3, 1, 2], 0.5), 2)
        self.assertEqual(compare.quantile([4], 0.25), 4)

    def test_quantiles_may_be_infinite(self):
        self.assertEqual(compare.quantile([math.inf] * 3, 0.25), math.inf)
        self.assertEqual(compare.quantile([1, math.inf], 0.5), math.inf)
        self.assertEqual(compare.quantile([1, 1, math.inf], 0.5), 1)


class Verdict(unittest.TestCase):

    def test_a_regression_exceeds_both_limits(self):
        self.assertTrue(compare.regressed([1.06] * 7))
        self.assertFalse(compare.regressed([1.05] * 7))
        # Only the median is over its limit: three of seven rounds were no
        # slower.
        self.assertFalse(compare.regressed([1, 1, 1, 1.3, 1.3, 1.3, 1.3]))
        self.assertTrue(
            compare.regressed([1, 1.03, 1.03, 1.3, 1.3, 1.3, 1.3]))
        # Only the lower quartile is over its limit.
        self.assertFalse(compare.regressed([1.04] * 7))

    def test_one_wild_round_changes_no_verdict(self):
        self.assertFalse(compare.regressed([1, 1, 1, 1, 1, 1, 50]))
        self.assertTrue(compare.regressed([0.1, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2]))

    def test_the_verdict_follows_the_rows_direction(self):
        self.assertEqual(compared(*[(1.0, 1.2)] * 7)["verdict"], "SLOWER")
        self.assertEqual(compared(*[(1.0, 0.8)] * 7)["verdict"], "faster")
        self.assertEqual(compared(*[(1.0, 1.01)] * 7)["verdict"], "")
        self.assertEqual(
            compared(*[(1.0, 1.2)] * 7, better="higher")["verdict"], "faster")

    def test_only_values_of_the_same_round_are_compared(self):
        # The machine became three times slower halfway; both trees are equally
        # fast.
        row = compared((1, 1), (1, 1), (3, 3), (3, 3), (3, 3))
        self.assertEqual(row["ratio"], {"median": 1, "lower": 1, "upper": 1})

    def test_a_count_that_fell_is_a_regression(self):
        self.assertEqual(
            compared(*[(400, 300)] * 7, better="higher")["verdict"], "SLOWER")


class Rows(unittest.TestCase):

    def test_a_row_that_one_side_lacks_is_named_and_not_judged(self):
        comparison = compare.Comparison("x")
        comparison.add([entry("both", 1), entry("old", 1)],
                       [entry("both", 1), entry("new", 1)])
        self.assertEqual([r["name"] for r in comparison.rows()], ["both"])
        self.assertEqual(sorted(comparison.incomplete()),
                         [("new", 0, 1), ("old", 1, 0)])

    def test_a_row_that_a_round_lacks_is_judged_by_other_rounds(self):
        comparison = compare.Comparison("x")
        comparison.add([entry("a", 1)], [entry("a", 2)])
        comparison.add([entry("a", 1), entry("b", 5)], [entry("b", 5)])
        rows = {row["name"]: row for row in comparison.rows()}
        self.assertEqual(rows["a"]["after"], [2])
        self.assertEqual(sorted(comparison.incomplete()),
                         [("a", 2, 1), ("b", 1, 1)])

    def test_two_rows_of_one_name_stay_two(self):
        comparison = compare.Comparison("x")
        comparison.add([entry("a", 1), entry("a", 5)],
                       [entry("a", 1), entry("a", 10)])
        self.assertEqual([(r["name"], r["after"]) for r in comparison.rows()],
                         [("a", [1]), ("a (2)", [10])])


if __name__ == "__main__":
    unittest.main()
