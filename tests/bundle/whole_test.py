#!/usr/bin/env python3
"""Runs ./verify --python PATH with all of its checks on the fakes: no check
fails, and the archive is small.

    whole_test.py BIN_FOLDER FAKE_FOLDER PYTHON
"""

import os
import sys
import unittest

import torch_test

MOST_ARCHIVED = 1 << 20  # bytes; the archive contains only text


class Whole(torch_test.OfTorch):
    patience_s = 1200

    def test_no_check_fails_and_the_archive_is_small(self):
        checks = self.verify("--python", self.python(), fake=torch_test.NODE)
        self.assertEqual(self.status, 0, self.said)
        self.assertEqual(
            [name for name, check in checks.items()
             if check["status"] not in ("passed", "skipped")], [])
        skipped = {name: check["reason"] for name, check in checks.items()
                   if check["status"] == "skipped"}
        print(f"{len(checks)} checks, of which skipped: {skipped}")
        self.assertEqual(self.archived(),
                         {name: c["status"] for name, c in checks.items()})
        self.assertLess(
            os.path.getsize(self.folder + "/sluice-verify-test.tar.gz"),
            MOST_ARCHIVED)
        self.nothing_runs()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
