#!/usr/bin/env python3
"""check_tables.py finds what is missing."""

import unittest

import check_tables

FILES = {
    "daemon/metrics/README.md": "| `sluice_a_b{x}`, `_c_total` | counter |\n",
    "daemon/metrics/prometheus_text.cc": 'Add("sluice_a_b"); Add("sluice_a_c_total");',
    "proto/README.md": "| rank | `Hello` |\n",
    "proto/session.proto": "message Request {\n  oneof body {\n"
                           "    Hello hello = 1;  // first\n  }\n}\n",
    "proto/admin/README.md": "| `Evict` |\n",
    "proto/admin/admin.proto": "service Admin {\n  rpc Evict(A) returns (B);\n}",
    "client/ctl/admin.cc": "stub->Evict(&context)",
}


class CheckTables(unittest.TestCase):
    def changed(self, path, old, new):
        return list(check_tables.check(
            {**FILES, path: FILES[path].replace(old, new)}.__getitem__))

    def test_whole_tables_pass(self):
        self.assertEqual(list(check_tables.check(FILES.__getitem__)), [])

    def test_what_is_missing_is_named(self):
        for path, old, new, says in [
                ("daemon/metrics/README.md", "_c_total", "_d", "sluice_a_c_total"),
                ("proto/session.proto", "Hello hello", "Bye bye", "Bye"),
                ("proto/admin/README.md", "Evict", "Other", "call Evict"),
                ("client/ctl/admin.cc", "Evict", "Other", "nobody calls Evict")]:
            with self.subTest(path):
                problems = self.changed(path, old, new)
                self.assertEqual(len(problems), 1)
                self.assertIn(says, problems[0])


if __name__ == "__main__":
    unittest.main()
