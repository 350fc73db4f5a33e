#!/usr/bin/env python3
"""Each rule of check_contracts.py reports its violations."""

import unittest

import check_contracts

PROTO = """
message Packet {
  oneof body {
    Request request = 3;
  }
}
message Request {
  oneof body {
    Hello hello = 1;  // first
    StepReport step_report = 5;
  }
}
message Reply {
  Error error = 1;
  oneof body {
    Noted noted = 6;
  }
}
message Event {
  oneof body {
    PeerDied peer_died = 1;
  }
}
"""


class Metrics(unittest.TestCase):

    def check(self, code, readme):
        return list(check_contracts.check_metrics(
            {"daemon/metrics/text.cc": code,
             "client/a.cc": '"sluice_not_a_metric"'}, readme))

    def test_code_and_table_agree_in_both_directions(self):
        code = 'to.Add("sluice_a_total"); {"sluice_job", name}'
        self.assertEqual(
            self.check(code, "| `sluice_a_total{gpu}` | counter |"), [])
        [missing] = self.check(code, "sluice_a_total, but in no table")
        self.assertIn("the metric sluice_a_total is in no table", missing)
        [surplus] = self.check("", "| `sluice_a_total` |")
        self.assertIn("there is no metric sluice_a_total", surplus)

    def test_an_abbreviated_metric_does_not_count(self):
        self.assertTrue(self.check('"sluice_a_b", "sluice_a_c"',
                                   "| `sluice_a_b`, `_c` |"))


    def test_metrics_of_the_process_count_too(self):
        [missing] = self.check('"process_open_fds"', "")
        self.assertIn("the metric process_open_fds is in no table", missing)
        [surplus] = self.check("", "| `process_open_fds` |")
        self.assertIn("there is no metric process_open_fds", surplus)


class Columns(unittest.TestCase):
    render = """
  Table table({"POOL", ">TOTAL"});
  Table table({"JOB", ">GPU MEMORY",
               ">LOSS"});
"""

    def check(self, readme):
        return list(check_contracts.check_columns(self.render, readme))

    def test_each_column_of_each_table_has_a_row(self):
        rows = ["| `POOL`, `TOTAL` | a pool |\n", "| `JOB` | a job |\n",
                "| `GPU MEMORY` (of `JOB`) | what it has |\n", "| `LOSS` | |\n"]
        self.assertEqual(self.check("".join(rows)), [])
        for left_out, column in ((0, "POOL"), (3, "LOSS")):
            found = self.check("".join(rows[:left_out] + rows[left_out + 1:]))
            self.assertIn(f"no row tells the column {column} of", found[0])

    def test_prose_and_rows_of_two_tables_do_not_count(self):
        found = self.check("`POOL` and `TOTAL` are told.\n"
                           "| `TOTAL`, `LOSS` | of two tables |\n")
        # Five columns without a row, and a row without a table.
        self.assertEqual(len(found), 6)

    def test_a_row_of_a_removed_column_is_reported(self):
        found = self.check("| `POOL`, `TOTAL` | |\n| `JOB`, `GPU MEMORY`, "
                           "`LOSS` | |\n| `SPEED` | |\n")
        self.assertEqual(found, ["client/ctl/README.md: no table has the "
                                 "columns SPEED"])


class Snapshot(unittest.TestCase):
    readme = ('Text "word".\n\n    {"generation", "up_s",\n     "a": [{"b"}]}\n'
              '\n"c"\n')

    def check(self, code):
        return list(check_contracts.check_snapshot(code, self.readme))

    def test_keys_and_their_block_agree_in_both_directions(self):
        code = 'to["generation"] = 1; to["up_s"] = 2; {"a", {{"b", 3}}}'
        self.assertEqual(self.check(code), [])
        [missing] = self.check(code + ' to["c"] = 4;')
        self.assertIn("the snapshot's key c is not in its block", missing)
        [surplus] = self.check(code.replace('to["up_s"] = 2;', ""))
        self.assertIn("the snapshot has no key up_s", surplus)


class Messages(unittest.TestCase):

    def test_every_message_is_in_the_table(self):
        names = ["Hello", "StepReport", "Error", "Noted", "PeerDied"]
        self.assertEqual(list(check_contracts.messages_of(PROTO)), names)
        for left_out in names:
            table = "".join(f"| rank | `{n}` |\n" for n in names
                            if n != left_out)
            [found] = check_contracts.check_messages(PROTO, table)
            self.assertIn(f"the message {left_out} is in no table", found)

    def test_a_message_has_one_row(self):
        table = "".join(f"| rank | `{n}` | | |\n" for n in
                        check_contracts.messages_of(PROTO))
        self.assertEqual(list(check_contracts.check_messages(PROTO, table)),
                         [])
        table += "| daemon | event `PeerDied`: as it once was | | `Noted` |\n"
        [found] = check_contracts.check_messages(PROTO, table)
        self.assertIn("the message PeerDied has 2 rows", found)


class Rpcs(unittest.TestCase):
    admin = "service Admin {\n  rpc Evict(EvictRequest) returns (X);\n}\n"

    def check(self, readme, files):
        return list(check_contracts.check_rpcs(self.admin, readme, files))

    def test_each_is_in_the_table_and_called(self):
        call = {"client/ctl/admin/admin.cc":
                "Call(path, &admin::Admin::Stub::Evict, request, reply)"}
        self.assertEqual(self.check("| `Evict` |", call), [])
        next_one = {"daemon/checks.cc": "stub.Evict(&context, {}, &reply)"}
        self.assertEqual(self.check("| `Evict` |", next_one), [])
        [untold] = self.check("", call)
        self.assertIn("the RPC Evict is in no table", untold)
        for files in ({}, {"daemon/service/x.cc": "service->Evict(&job)"},
                      {"tests/x_test.cc": "&Admin::Stub::Evict, request"},
                      {"client/ctl/x.cc": "Evict(socket, eviction)"}):
            [uncalled] = self.check("| `Evict` |", files)
            self.assertIn("no program calls the RPC Evict", uncalled)


if __name__ == "__main__":
    unittest.main()
