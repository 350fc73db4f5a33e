#!/usr/bin/env python3
"""Each rule of check_shape.py reports its violations."""

import unittest

import check_shape


def sources(**texts):
    return {path.replace("__", "/") + ".cc": text
            for path, text in texts.items()}


A = """namespace sluice::daemon {
absl::StatusOr<std::pair<int, int>> Clock::Now(
    int a) {
"""
B = """namespace sluice::daemon {
Clock::Clock() {}
void Other::Run() { Clock::Tick(); }
"""


class Classes(unittest.TestCase):

    def test_a_class_has_one_source(self):
        self.assertEqual(list(check_shape.check_classes(
            sources(a=A, b=B.replace("Clock::Clock", "Other::Other")))), [])
        self.assertEqual(list(check_shape.check_classes(
            sources(a=A, b=B.replace("daemon", "client")))), [])
        [found] = check_shape.check_classes(sources(a=A, b=B))
        self.assertIn("daemon::Clock is defined in a.cc, b.cc", found)


class Circles(unittest.TestCase):

    def test_folders_include_each_other_in_one_direction(self):
        files = {"a/a.cc": '#include "b/b.h"\n', "b/b.h": '#include "c/c.h"\n',
                 "c/c.h": '#include "c/d.h"\n'}
        self.assertEqual(list(check_shape.check_circles(files)), [])
        files["c/c.cc"] = '#include "a/a.h"\n'
        [found] = check_shape.check_circles(files)
        self.assertIn("a, b, c include each other", found)


if __name__ == "__main__":
    unittest.main()
