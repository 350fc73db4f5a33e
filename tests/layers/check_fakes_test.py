#!/usr/bin/env python3
"""Every rule of check_fakes.py must be able to fail."""

import unittest

import check_fakes

SIM = "SLUICE_BIN_DIR=build/bin"
FAKES = "SLUICE_FAKE_CUDA_DIR=build/fake_cuda"


class Fakes(unittest.TestCase):
    def check(self, tests, rows="", cmake="watch stream_math_test"):
        readme = f"# F\n| `train_never` | x |\n{check_fakes.HEADING}\n{rows}"
        return list(check_fakes.check(tests, readme, cmake))

    def test_a_test_of_training_is_there_or_told(self):
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

    def test_other_tests_need_not_be(self):
        self.assertEqual(self.check({"lease_test": (["unit"], SIM),
                                     "train_data_test": (["unit"], SIM)}), [])

    def test_the_table_ends_with_its_section_and_gives_reasons(self):
        tests = {"train_watch": (["integration"], SIM)}
        self.assertTrue(self.check(tests,
                                   "## More\n| `train_watch` | a |\n"))
        self.assertTrue(self.check(tests, "| `train_watch` |  |\n"))

    def test_what_is_told_is_true(self):
        row = "| `train_watch` | a terminal |\n"
        [both] = self.check({"train_watch": (["integration"], FAKES)}, row)
        self.assertIn("but in", both)
        [gone] = self.check({}, row, cmake="stream_math_test")
        self.assertIn("there is no such test", gone)
        # Of another preset.
        self.assertEqual(self.check({}, row), [])


if __name__ == "__main__":
    unittest.main()
