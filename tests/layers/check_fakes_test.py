#!/usr/bin/env python3
"""Each rule of check_fakes.py reports its violations."""

import unittest

import check_fakes

SIM = "SLUICE_BIN_DIR=build/bin"
FAKES = "SLUICE_FAKE_CUDA_DIR=build/fake_cuda"


class Fakes(unittest.TestCase):
    def check(self, tests, rows="", cmake="watch stream_math_test", parts="",
              sources=None):
        """tests: name -> labels, environment and, if it matters, command."""
        readme = (f"# F\n| `train_never` | x |\n{check_fakes.HEADING}\n{rows}"
                  f"{check_fakes.IN_PART}\n{parts}")
        tests = {name: check_fakes.Test(*test, *([] if len(test) > 2 else [[]]))
                 for name, test in tests.items()}
        return list(check_fakes.check(tests, readme, cmake, sources or {}))

    def test_a_test_of_training_runs_on_the_fakes_or_is_listed(self):
        for name, label in (("steps_test", "gradient"), ("io_test", "poison"),
                            ("train_watch", "integration")):
            [missing] = self.check({name: ([label], SIM)})
            self.assertIn(f"{name} is not on the fakes", missing)
            self.assertEqual(self.check(
                {name: ([label], SIM),
                 f"{name}_on_fake_cuda": ([label], FAKES)}), [])
            self.assertEqual(self.check({name: ([label], FAKES)}), [])
        self.assertEqual(self.check({"train_watch": (["integration"], SIM)},
                                    "| `train_watch` | a terminal |\n"), [])

    def test_other_tests_need_no_fakes(self):
        self.assertEqual(self.check({"lease_test": (["unit"], SIM),
                                     "train_data_test": (["unit"], SIM)}), [])

    def test_only_rows_of_the_section_with_a_reason_count(self):
        tests = {"train_watch": (["integration"], SIM)}
        self.assertTrue(self.check(tests,
                                   "## More\n| `train_watch` | a |\n"))
        self.assertTrue(self.check(tests, "| `train_watch` |  |\n"))

    def test_a_partial_test_is_whole_with_deep_or_is_listed(self):
        for command in (["steps_test", "--gtest_filter=-Drawn*"],
                        ["python3", "steps_test.py", "-Drawn*"]):
            tests = {"steps_test": (["gradient"], SIM, command[:-1]),
                     "steps_test_on_fake_cuda": (["gradient"], FAKES, command)}
            [part] = self.check(tests)
            self.assertIn("without some of its cases (-Drawn*)", part)
            row = "| `steps_test` | `-Drawn*` | slow |\n"
            self.assertEqual(self.check(tests, parts=row), [])
            self.assertTrue(self.check(tests, parts=row.replace("slow", "")))
            whole = (["deep"], FAKES, command[:-1])
            name = "steps_test_whole_on_fake_cuda"
            self.assertEqual(self.check({**tests, name: whole}), [])
            for wrong in ((["gradient"], FAKES, command[:-1]),
                          (["deep"], FAKES, command)):
                [violation] = self.check({**tests, name: wrong})
                self.assertIn("not all of steps_test, or not deep", violation)
        # A command without a selection runs all cases.
        self.assertEqual(self.check(
            {"steps_test": (["gradient"], SIM),
             "steps_test_on_fake_cuda": (["gradient"], FAKES,
                                         ["python3", "steps_test.py"])}), [])

    def test_a_case_that_the_source_skips_is_listed(self):
        tests = {"steps_test": (["gradient"], SIM),
                 "steps_test_on_fake_cuda": (["gradient"], FAKES)}
        sources = {"steps_test": "TEST(A, Runs) {\n}\nTEST_P(A, Waits) {\n"
                                 "  if (OnCuda()) GTEST_SKIP() << 1;\n}\n"}
        [part] = self.check(tests, sources=sources)
        self.assertIn("without some of its cases (A.Waits)", part)
        row = "| `steps_test` | `A.Waits` | only sim is slow |\n"
        self.assertEqual(self.check(tests, parts=row, sources=sources), [])
        [gone] = self.check(tests, parts=row)
        self.assertIn("A.Waits of steps_test, but the fakes no longer", gone)
        # Rows may name tests of another preset.
        self.assertEqual(self.check({}, parts=row), [])

    def test_outdated_rows_are_reported(self):
        row = "| `train_watch` | a terminal |\n"
        [both] = self.check({"train_watch": (["integration"], FAKES)}, row)
        self.assertIn("but in", both)
        [gone] = self.check({}, row, cmake="stream_math_test")
        self.assertIn("there is no such test", gone)
        # Rows may name tests of another preset.
        self.assertEqual(self.check({}, row), [])


if __name__ == "__main__":
    unittest.main()
