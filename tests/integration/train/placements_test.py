"""Runs every pair of settings that place activations, recompute them, or cut a
step: gradients are those of plain torch, and losses those of a run with the
default placement."""

import itertools
import json
import unittest

import either_node
import harness

# Five layers: one group of four, and one incomplete group.
MODEL = "--layers 5 --ffn 96 --chunk 40 --dtype fp32".split()


def rows(keep):
    return ["--fractions", ",".join(
        f"{name}=keep:{keep}+{1 - keep}"
        for name in ("layer_input", "attention_output", "lse"))]


# A plain run has the first value of each factor in PLACEMENT. The losses do not
# depend on the factors in PLACEMENT.
FACTORS = {
    "rerun": {f: ["--rerun", f] for f in ("0", "0.25", "0.5", "1")},
    "rerun_layers": {k: ["--rerun-layers", k] for k in ("1", "2", "4")},
    "rows": {"host": [], "half": rows(0.5), "hbm": rows(1)},
    "states": {where: ["--optimizer-states", where]
               for where in ("hbm", "host")},
    "order": {side: ["--backward-order", side] for side in ("keys", "queries")},
    # A partial last chunk, only whole chunks, and a last chunk of one token,
    # which leaves ranks empty.
    "length": {n: ["--seq-len", n] for n in ("333", "320", "321")},
    "ranks": {n: ["--ranks", n] for n in ("1", "2", "3", "4")},
    "model": {
        "llama": "--hidden 96 --heads 12 --kv-heads 4".split(),
        "gpt": "--arch gpt --hidden 96 --heads 12".split(),
        "kv_heads": "--hidden 96 --heads 12 --kv-heads 3".split(),
        # With more than two ranks, a rank has part of the rows of a head.
        "few_heads": "--hidden 96 --heads 2 --kv-heads 1".split()},
}
PLACEMENT = ("rerun", "rerun_layers", "rows", "states")


def runnable(case):
    """Returns whether a run accepts the case: groups of layers need --rerun.
    """
    return case["rerun"] != "0" or case["rerun_layers"] == "1"


def pairs(case):
    return set(itertools.combinations(sorted(case.items()), 2))


def cover():
    """Returns cases that contain every pair of values: first each placement's
    values alone, then always the case with the most new pairs."""
    plain = {name: next(iter(values)) for name, values in FACTORS.items()}
    cases = [case for name in PLACEMENT for value in FACTORS[name]
             if value != plain[name] and runnable(
                 case := {**plain, "rerun": "0.5" if name == "rerun_layers"
                          else "0", name: value})]
    every = [case for values in itertools.product(*FACTORS.values())
             if runnable(case := dict(zip(FACTORS, values, strict=True)))]
    missing = set().union(*map(pairs, every)).difference(*map(pairs, cases))
    while missing:
        cases.append(max(every, key=lambda case: len(missing & pairs(case))))
        missing -= pairs(cases[-1])
    return cases


def flags(case, *left_out):
    return [word for name, value in case.items() if name not in left_out
            for word in FACTORS[name][value]]


class Placements(either_node.NodeTest):
    def setUp(self):
        super().setUp()
        self.plain = {}

    def cases(self):
        cases = cover()
        return cases if harness.WHOLE else cases[-1:8:-6]

    def losses(self, words):
        code, out, err = self.run_train(
            *MODEL, *words, "--private", "--json", "--data", self.text,
            "--steps", str(harness.PARITY_STEPS), "--warmup", "4")
        self.assertEqual(code, 0, err)
        report = json.loads(out)
        self.assertEqual(report["plan"]["mismatches"], 0)
        self.assertEqual(len(report["losses"]), harness.PARITY_STEPS)
        return report["losses"]

    def plain_losses(self, case):
        """Returns the losses of the plain run with this case's other factors.
        """
        plain = {**case, **{name: next(iter(FACTORS[name]))
                            for name in PLACEMENT}}
        key = tuple(plain.values())
        if key not in self.plain:
            self.plain[key] = self.losses(flags(plain))
        return self.plain[key]

    def test_every_pair_has_the_gradients_of_plain_torch(self):
        for case in self.cases():
            with self.subTest(case):
                code, out, err = self.run_train(
                    *MODEL, *flags(case, "states"), "--json", command="check")
                self.assertTrue(out, err)
                result = json.loads(out)
                self.assertLessEqual(result["grad_max_rel_error"], 1e-4)
                self.assertGreater(result["grad_max_rel_error"], 0)
                self.assertEqual((code, result["ok"]), (0, True))

    def test_every_pair_learns_what_a_plain_run_does(self):
        for case in self.cases():
            with self.subTest(case):
                for plain, placed in zip(self.plain_losses(case),
                                         self.losses(flags(case)), strict=True):
                    self.assertLessEqual(abs(placed / plain - 1), 1e-6)


if __name__ == "__main__":
    unittest.main()
