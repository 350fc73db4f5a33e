"""Tests the memory and the longest sequence of alst, with the demo's model,
memory and ranks."""

import importlib.util
import os
import unittest

import either_node
import harness

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
# The demo's model (deploy/demo/demo.py).
MODEL = ("--arch llama --layers 4 --hidden 128 --heads 2 --kv-heads 2 --ffn "
         "344 --dtype fp32 --ranks 2").split()
HIDDEN_BYTES = 128 * 4
LAYERS = 4
# Just too many tokens for recompute in 36 MiB. --deep searches for the limit.
TOO_LONG = 3456
FEW, MANY = (4096, 8192) if harness.WHOLE else (2048, 4096)


def longest(fits, start):
    spec = importlib.util.spec_from_file_location(
        "search", os.path.join(ROOT, "deploy/demo/search.py"))
    search = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(search)
    return search.longest(fits, start)[0]


class Alst(either_node.NodeTest):
    def probe(self, method, length, hbm):
        code, out, err = self.run_train(
            *MODEL, "--private", "--probe", "--json", "--method", method,
            "--seq-len", str(length), "--hbm", hbm, "--host", "384MiB")
        self.assertIn(code, (0, 3), err)
        return harness.json.loads(out)

    def test_each_local_row_costs_at_most_14_hidden_states(self):
        few, many = (self.probe("alst", length, "128MiB")
                     for length in (FEW, MANY))
        more = many["peak_hbm_bytes"] - few["peak_hbm_bytes"]
        states = more / ((MANY - FEW) / 2) / HIDDEN_BYTES
        print(f"alst: {states:.2f} hidden states per local row")
        self.assertLessEqual(states, 14)
        # Layer inputs are in host memory only.
        self.assertEqual(many["host_bytes"], LAYERS * MANY * HIDDEN_BYTES +
                         2 * either_node.STAGE_BYTES)

    def test_alst_fits_more_than_twice_recomputes_tokens(self):
        def fits(length):
            return self.probe("recompute", length, "36MiB")["fits"]
        if harness.WHOLE:
            recompute = longest(fits, 2048)
        else:
            recompute = TOO_LONG
            self.assertFalse(fits(TOO_LONG), "it fits: raise TOO_LONG")
        length = -(-23 * recompute // 10)
        result = self.probe("alst", length, "36MiB")
        print(f"recompute's {recompute} tokens; alst at {length}: "
              f"{result['fits']}")
        self.assertTrue(result["fits"], result["message"])


if __name__ == "__main__":
    unittest.main()
