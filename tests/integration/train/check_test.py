"""Runs `sluice-train check` over the shapes that a user may give."""

import json
import unittest

import either_node
import harness

SHAPES = [
    # The reference case.
    "--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --arch llama "
    "--seq-len 333 --chunk 64 --ranks 2 --alpha 0.5",
    # One chunk, one token, a last chunk of one row, a last chunk that leaves
    # ranks empty.
    "--seq-len 40 --chunk 64 --ranks 1 --alpha 1",
    "--seq-len 1 --chunk 64 --ranks 1 --alpha 0",
    "--seq-len 129 --chunk 64 --ranks 2 --alpha 0",
    "--seq-len 130 --chunk 64 --ranks 4 --heads 4 --alpha 0.3",
    "--seq-len 3 --chunk 2 --ranks 4 --heads 4 --alpha 1",
    # GPT, and sizes that are no powers of two.
    "--arch gpt --layers 2 --hidden 60 --heads 3 --ffn 100 --seq-len 201 "
    "--chunk 50 --ranks 3 --alpha 0.7",
    "--arch gpt --seq-len 97 --chunk 33 --ranks 1 --alpha 0",
    # Grouped queries: kv heads replicated over ranks, or expanded if they do
    # not align with the ranks.
    "--heads 4 --kv-heads 1 --seq-len 150 --chunk 32 --ranks 4 --alpha 0.5",
    "--hidden 96 --heads 12 --kv-heads 3 --seq-len 150 --chunk 32 --ranks 4 "
    "--alpha 1",
    "--heads 8 --kv-heads 4 --seq-len 150 --chunk 32 --ranks 2 --alpha auto",
    # More chunks than prefetch, three layers.
    "--layers 3 --seq-len 500 --chunk 40 --ranks 2 --alpha 0.9 --prefetch 3",
    "--layers 3 --seq-len 300 --chunk 40 --ranks 1 --alpha 0.1 --prefetch 1",
    # Single classes of activations are kept, swapped or recomputed.
    "--seq-len 201 --chunk 50 --ranks 3 --hidden 60 --heads 3 --fractions "
    "norm1=keep:0.5,q=0,k=0.3,norm2=0,ffn_up=keep:0.25+0.5,ffn_gate=0.7",
    "--arch gpt --seq-len 130 --chunk 33 --ranks 2 --alpha 0.3 --fractions "
    "attention_residual=keep:1,ffn_activation=keep:0.4+0.2",
    # The same for classes that are also used in place, and for scratch.
    "--seq-len 201 --chunk 50 --ranks 3 --hidden 60 --heads 3 --fractions "
    "layer_input=keep:1,lse=keep:1,query_gradient=keep:1,q=keep:1",
    "--arch gpt --seq-len 130 --chunk 33 --ranks 2 --alpha 0.3 "
    "--backward-order queries --fractions attention_output=keep:1,k=keep:1,"
    "output_gradient=keep:1,value_gradient=keep:1,norm2=keep:0.5",
    # More ranks than heads, or a number of ranks that does not divide the
    # heads.
    "--heads 2 --kv-heads 1 --seq-len 333 --chunk 63 --ranks 4 --alpha 0.5",
    "--heads 2 --seq-len 130 --chunk 32 --ranks 3 --alpha auto",
]
# Indices of shapes that cover all numbers of ranks, models and orders. The C++
# tests of the streamed step have all shapes; here the others need --deep.
FEW = (0, 2, 5, 6, 8, 13, 16, 17)
# The shapes for which alst is compared with plain torch.
ALST_SHAPES = [
    "--seq-len 333 --kv-heads 2 --ranks 2",
    "--arch gpt --hidden 60 --heads 3 --ffn 100 --seq-len 201 --ranks 3",
    "--hidden 96 --heads 12 --kv-heads 3 --seq-len 150 --ranks 4",
    "--heads 4 --kv-heads 1 --seq-len 3 --ranks 4",
    "--arch gpt --seq-len 97 --ranks 1",
]
SMALL = "--layers 2 --hidden 64 --heads 4 --ffn 96 --vocab 131".split()


class Check(either_node.NodeTest):
    def check(self, shape):
        if either_node.ON_FAKES:  # a head's size must be a multiple of 8
            shape = shape.replace("--hidden 60", "--hidden 72")
        # A shape's flags replace those of SMALL; a flag may be given only
        # once.
        given = shape.split()
        flags = [f for i in range(0, len(SMALL), 2) if SMALL[i] not in given
                 for f in SMALL[i:i + 2]]
        code, out, err = self.run_train(*flags, *given, "--json",
                                        command="check")
        self.assertTrue(out, f"{shape}: {err}")
        return code, json.loads(out)

    def test_fp32_agrees_with_plain_torch_in_fp64(self):
        shapes = SHAPES if harness.WHOLE else [SHAPES[i] for i in FEW]
        for shape in shapes:
            with self.subTest(shape):
                code, result = self.check(shape)
                self.assertLessEqual(result["grad_max_rel_error"], 1e-4, shape)
                self.assertLessEqual(result["loss_rel_error"], 1e-5, shape)
                self.assertTrue(result["ok"])
                self.assertEqual(code, 0)

    def test_alst_agrees_with_plain_torch(self):
        for i, shape in enumerate(ALST_SHAPES):
            both = "fp32", "bf16"
            for dtype in both if harness.WHOLE else [both[i % 2]]:
                with self.subTest(shape, dtype=dtype):
                    code, result = self.check(
                        f"{shape} --method alst --dtype {dtype}")
                    self.assertEqual((code, result["ok"]), (0, True), result)

    def test_bf16_is_as_good_as_plain_torch_in_bf16(self):
        for i in (0, 6, 9) if harness.WHOLE else (6,):
            shape = SHAPES[i]
            with self.subTest(shape):
                code, result = self.check(shape + " --dtype bf16")
                plain = result["plain_bf16"]
                self.assertLessEqual(result["grad_max_rel_error"],
                                     1.5 * plain["grad_max_rel_error"], shape)
                self.assertEqual((code, result["ok"]), (0, True))


if __name__ == "__main__":
    unittest.main()
