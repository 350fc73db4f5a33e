#!/usr/bin/env python3
"""lintian finds no error in the packages, and they need no newer glibc than
2.35: lintian_test.py BUILD"""

import glob
import os
import pathlib
import sys
import tempfile
import unittest

import installed
from installed import run

BUILD = os.path.abspath(sys.argv.pop())
sys.path.append(installed.HERE + "/../../deploy/package")
import check_debs  # noqa: E402


class Packages(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        run("cpack", "-B", folder.name, cwd=BUILD)
        cls.debs = glob.glob(folder.name + "/*.deb")

    def test_packages_have_no_lintian_error(self):
        self.assertEqual(len(self.debs), len(installed.manifest(BUILD)),
                         self.debs)
        # Libraries are linked statically on purpose.
        run("lintian", "--fail-on", "error", "--allow-root",
            "--suppress-tags", "embedded-library", *self.debs)

    def test_packages_need_no_library_but_glibc_2_35(self):
        for deb in self.debs:
            self.assertEqual(check_debs.check(pathlib.Path(deb)), [])

    def test_another_library_or_a_newer_glibc_is_refused(self):
        self.assertEqual(check_debs.problems_of("systemd, libc6 (>= 2.35)"), [])
        self.assertEqual(
            check_debs.problems_of("libc6 (>= 2.36), libfmt9 (>= 9.1.0)"),
            ["libc6 2.36", "libfmt9"])


if __name__ == "__main__":
    unittest.main()
