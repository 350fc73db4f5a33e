"""A run that was saved and resumed is the run that was not."""

import glob
import json
import os
import shutil
import struct
import unittest

import harness

FLAGS = "--private --seq-len 300 --batch 1 --accumulate 2".split()


def tensors_of(path):
    """Name -> (dtype, shape, bytes) of a safetensors file."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    return {name: (t["dtype"], t["shape"],
                   data[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


class Resume(harness.TrainTest):
    def halves(self, *more, first=(), second=()):
        """Losses of a run of 6 steps, and of one saved after 3."""
        for name in ("whole", "half"):
            shutil.rmtree(self.path(name), ignore_errors=True)
        whole = self.train(*FLAGS, *more, *first, "--steps", "6", "--save",
                           self.path("whole"))
        self.train(*FLAGS, *more, *first, "--steps", "3", "--save",
                   self.path("half"))
        rest = self.train(*FLAGS, *more, *(second or first), "--steps", "6",
                          "--resume", self.path("half"), "--save",
                          self.path("half"))
        return whole["losses"], rest["losses"]

    def same_files(self, pattern):
        for whole in glob.glob(self.path("whole/checkpoint-6/" + pattern)):
            half = whole.replace("/whole/", "/half/")
            # Not assertEqual: it would print megabytes.
            self.assertTrue(tensors_of(whole) == tensors_of(half), whole)

    def test_one_rank_goes_on_bit_for_bit(self):
        for method in ("sluice", "recompute"):
            for dtype in ("fp32", "bf16"):
                with self.subTest(method=method, dtype=dtype):
                    whole, rest = self.halves("--method", method, "--dtype",
                                              dtype)
                    self.assertEqual(whole[3:], rest)
                    self.same_files("*.safetensors")

    def test_gpt_goes_on_bit_for_bit(self):
        whole, rest = self.halves("--arch", "gpt")
        self.assertEqual(whole[3:], rest)
        self.same_files("*.safetensors")

    def test_another_number_of_ranks_goes_on_within_rounding(self):
        for first, second in (("1", "2"), ("2", "1"), ("2", "4")):
            with self.subTest(first=first, second=second):
                whole, rest = self.halves(first=("--ranks", first),
                                          second=("--ranks", second))
                for a, b in zip(whole[3:], rest, strict=True):
                    self.assertLess(abs(a - b), 1e-4)

    def test_the_files_are_hugging_faces(self):
        self.train(*FLAGS, "--steps", "1", "--save", self.path("llama"))
        folder = self.path("llama/checkpoint-1/")
        llama = tensors_of(folder + "model.safetensors")
        self.assertEqual(llama["model.layers.1.self_attn.k_proj.weight"][:2],
                         ("F32", [32, 64]))
        self.assertEqual(llama["lm_head.weight"][1], [256, 64])
        with open(folder + "config.json", encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual(config["model_type"], "llama")
        self.assertEqual(config["num_key_value_heads"], 2)
        self.train(*FLAGS, "--arch", "gpt", "--steps", "1", "--save",
                   self.path("gpt"))
        gpt = tensors_of(self.path("gpt/checkpoint-1/model.safetensors"))
        self.assertEqual(gpt["h.0.attn.c_attn.weight"][1], [64, 128])
        self.assertEqual(gpt["h.0.mlp.c_fc.weight"][1], [64, 96])

    def edit(self, path, change):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(change(text))

    def test_a_plan_that_is_none_is_made_anew(self):
        whole, _ = self.halves()
        plan = "plan-0-of-1.json"

        def offsets_of(text):
            plan = json.loads(json.loads(text)["plan"])
            return [s["placement"]["offsets"]
                    for s in plan["ranks"][0]["segments"]]

        def shifted(text):
            saved = json.loads(text)
            plan = json.loads(saved["plan"])
            for segment in plan["ranks"][0]["segments"]:
                offsets = segment["placement"]["offsets"]
                segment["placement"]["offsets"] = [o + 64 for o in offsets]
            return json.dumps({**saved, "plan": json.dumps(plan)})

        for change in (lambda _: '{"key": 3}', shifted,
                       lambda t: json.dumps({**json.loads(t), "plan": 3})):
            self.train(*FLAGS, "--steps", "3", "--save", self.path("broken"))
            path = self.path("broken/checkpoint-3/" + plan)
            with open(path, encoding="utf-8") as file:
                good = file.read()
            self.edit(path, change)
            rest = self.train(*FLAGS, "--steps", "6", "--resume",
                              self.path("broken"), "--save",
                              self.path("broken"))
            self.assertEqual(whole[3:], rest["losses"])
            with open(self.path("broken/checkpoint-6/" + plan),
                      encoding="utf-8") as file:
                self.assertTrue(offsets_of(file.read()) == offsets_of(good),
                                "the plan was not made anew")
            shutil.rmtree(self.path("broken"))

    def test_a_shard_of_another_rank_is_refused(self):
        # Two buckets of different sizes, one a rank.
        flags = [*FLAGS, "--ranks", "2", "--vocab", "3000"]
        save = self.path("save")
        self.train(*flags, "--steps", "1", "--save", save)
        shard = os.path.join(save, "checkpoint-1",
                             "optimizer-{}-of-2.safetensors")
        shutil.copy(shard.format(0), shard.format(1))
        code, _, err = self.run_train(
            *harness.MODEL, *flags, "--data", self.text, "--steps", "2",
            "--resume", save)
        self.assertEqual(code, 2, err)
        self.assertEqual(len(err.strip().splitlines()), 1, err)
        self.assertIn("optimizer-1-of-2.safetensors", err)

    def test_a_run_that_is_done_says_so(self):
        save = self.path("save")
        self.train(*FLAGS, "--steps", "2", "--save", save)
        for steps in ("2", "1"):
            code, _, err = self.run_train(
                *harness.MODEL, *FLAGS, "--data", self.text, "--steps", steps,
                "--resume", save)
            self.assertEqual(code, 0, err)
            self.assertIn("nothing to do: step 2", err)

    def test_a_broken_checkpoint_is_one_clear_line(self):
        save = self.path("save")
        self.train(*FLAGS, "--steps", "1", "--save", save)
        folder = os.path.join(save, "checkpoint-1")

        def refused(says, *more):
            code, _, err = self.run_train(
                *harness.MODEL, *FLAGS, "--data", self.text, "--steps", "2",
                "--resume", save, *more)
            self.assertEqual(code, 2, err)
            self.assertEqual(len(err.strip().splitlines()), 1, err)
            self.assertIn(says, err)

        refused("--vocab", "--vocab", "300")
        refused("--arch", "--arch", "gpt")
        weights = os.path.join(folder, "model.safetensors")
        with open(weights, "r+b") as file:
            file.truncate(os.path.getsize(weights) - 100)
        refused("cut short or broken")
        os.remove(weights)
        refused("model.safetensors")
        with open(os.path.join(folder, "trainer_state.json"), "w",
                  encoding="utf-8") as file:
            file.write('{"step": -1}')
        refused("trainer_state.json")
        os.rename(folder, self.path("elsewhere"))
        refused("no checkpoint")


if __name__ == "__main__":
    unittest.main()
