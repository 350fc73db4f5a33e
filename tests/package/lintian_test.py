#!/usr/bin/env python3
"""Debian's own checker finds no error in the packages: lintian_test.py BUILD"""

import glob
import os
import sys
import tempfile
import unittest

import installed
from installed import run

BUILD = os.path.abspath(sys.argv.pop())


class Packages(unittest.TestCase):

    def test_have_no_error(self):
        with tempfile.TemporaryDirectory() as folder:
            run("cpack", "-B", folder, cwd=BUILD)
            packages = glob.glob(folder + "/*.deb")
            self.assertEqual(len(packages),
                             len(installed.manifest(BUILD)), packages)
            run("lintian", "--fail-on", "error", "--allow-root", *packages)


if __name__ == "__main__":
    unittest.main()
