#!/usr/bin/env python3
"""Tests which changes of a line are found, that a planted line runs the old or
the new code, and that the sources have the texts that deep tests remove."""

import os
import sys
import unittest

import mutants
import planted
import sites

sys.path.insert(0, os.path.join(mutants.ROOT, "tests/torch/cuda"))
import nccl_defects_test


def changes(path, line):
    return {(site.old, site.new) for site in sites.of_line(path, 1, line)}


class Sites(unittest.TestCase):

    def test_a_condition_is_negated_and_its_operators_are_swapped(self):
        self.assertEqual(changes("a.cc", "  if (a < b && c) return;"), {
            ("a < b && c", "!(a < b && c)"), ("a < b && c", "a <= b && c"),
            ("a < b && c", "a < b || c")})
        self.assertEqual(changes("a.py", "    elif a is not b:"), {
            ("a is not b", "not (a is not b)"), ("a is not b", "a is b")})

    def test_a_value_is_changed_and_a_call_is_removed(self):
        self.assertEqual(changes("a.cc", "  return n + 1;"),
                         {("n + 1", "n - 1"), ("n + 1", "n + 2")})
        self.assertEqual(changes("a.cc", "  lock_.Release(n);"),
                         {("lock_.Release(n)", "")})
        self.assertEqual(changes("a.py", "    self.rows = rows"),
                         {("self.rows = rows", "")})

    def test_declarations_comments_and_parts_of_statements_are_left_alone(self):
        for line in ("  constexpr int kMost = 3;", "  // if (a) b();",
                     "  using A = B;", "      Other(b));", "  while (true) {",
                     "  if (auto* a = Find(1)) {"):
            self.assertEqual(changes("a.cc", line) - {
                ("auto* a = Find(1)", "auto* a = Find(2)")}, set(), line)
        self.assertEqual(
            sites.of("a.py", 'def f():\n    """\n    g()\n    """'), [])

    def test_a_planted_line_runs_the_old_or_the_new_code(self):
        text = "def f(a, b):\n    if a < b:\n        return 1\n    return 2\n"
        [site] = [site for site in sites.of("a.py", text)
                  if site.new == "a <= b"]
        scope = {}
        exec(sites.planted("a.py", text, [(7, site)]).replace(
            '__import__("sluice_mutant").on(7)', "on[0]"), scope)
        scope["on"] = [False]
        self.assertEqual(scope["f"](1, 1), 2)
        scope["on"] = [True]
        self.assertEqual(scope["f"](1, 1), 1)


class Listed(unittest.TestCase):
    """planted.txt and nccl_defects_test.py list texts that deep tests remove.
    The sources must still have these texts."""

    def test_planted_statements_are_in_their_files(self):
        for defect in planted.read():
            with self.subTest(str(defect)):
                defect.site()

    def test_removed_texts_of_the_nccl_module_occur_once(self):
        text = mutants.read(nccl_defects_test.SOURCE)
        for name in nccl_defects_test.DEFECTS:
            with self.subTest(name):
                nccl_defects_test.mutated(text, name)


if __name__ == "__main__":
    unittest.main()
