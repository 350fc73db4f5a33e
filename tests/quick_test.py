#!/usr/bin/env python3
"""quick.py takes for changed what a test's command runs."""

import os
import sys
import tempfile
import unittest

import quick


class Changed(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.script = self.file("parts_test.py", 100)
        self.module = self.file("module.py", 100)
        self.data = self.file("data", 100)

    def file(self, name, changed):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8"):
            pass
        os.utime(path, (changed, changed))
        return path

    def wanted(self, *command, label="golden", since=10**10):
        test = {"command": list(command),
                "properties": [{"name": "LABELS", "value": [label]}]}
        return quick.wanted(test, self.folder, since)

    def test_nothing_newer_is_nothing_to_run(self):
        self.assertFalse(self.wanted(self.data, self.script))

    def test_a_newer_program_argument_or_module_beside_a_script(self):
        for path in (self.data, self.script, self.module):
            with self.subTest(path):
                os.utime(path, (10**10 + 1, 10**10 + 1))
                self.assertTrue(self.wanted(sys.executable, self.script,
                                            self.data))
                os.utime(path, (100, 100))

    def test_a_newer_module_anywhere_in_a_folder_among_the_arguments(self):
        os.mkdir(os.path.join(self.folder, "deep"))
        module = self.file("deep/module.py", 100)
        os.utime(self.folder, (100, 100))
        self.assertFalse(self.wanted(self.data, self.folder, since=200))
        os.utime(module, (300, 300))
        self.assertTrue(self.wanted(self.data, self.folder, since=200))

    def test_a_newer_program_for_what_starts_programs(self):
        os.mkdir(os.path.join(self.folder, "lib"))
        self.file("lib/libsluice.so", 10**10 + 1)
        self.assertTrue(self.wanted(self.data, label="python"))
        self.assertFalse(self.wanted(self.data, label="golden"))

    def test_units_always_and_deep_ones_never(self):
        self.assertTrue(self.wanted(self.data, label="unit"))
        self.assertFalse(self.wanted(self.data, label="deep", since=0))


if __name__ == "__main__":
    unittest.main()
