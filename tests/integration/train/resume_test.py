"""A run that was saved and resumed equals an uninterrupted run."""

import glob
import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

import harness

FLAGS = "--private --seq-len 300 --batch 1 --accumulate 2".split()


def tensors_of(path):
    """Returns name -> (dtype, shape, bytes) of a safetensors file."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    return {name: (t["dtype"], t["shape"],
                   data[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def replace_tensor(path, name, data):
    with open(path, "r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        file.seek(8 + size + header[name]["data_offsets"][0])
        file.write(data)


class Resume(harness.TrainTest):
    _saved = {}  # steps -> (result, folder) of a saved run

    @classmethod
    def tearDownClass(cls):
        for _, folder in cls._saved.values():
            shutil.rmtree(folder, ignore_errors=True)
        cls._saved.clear()

    def saved(self, name, steps):
        """Returns the result of a run of `steps` steps with FLAGS, and copies
        the run's checkpoints to self.path(name). The run happens once for all
        tests."""
        if steps not in self._saved:
            result = self.train(*FLAGS, "--steps", str(steps), "--save",
                                self.path("original"))
            folder = tempfile.mkdtemp(prefix="sluice-")
            self._saved[steps] = result, folder
            shutil.move(self.path("original"), folder + "/save")
        result, folder = self._saved[steps]
        shutil.copytree(folder + "/save", self.path(name))
        return result

    def halves(self, *more, first=(), second=()):
        """Returns the losses of a run of 6 steps, and of a run that was saved
        after 3 steps and resumed."""
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

    def test_one_rank_resumes_bit_for_bit(self):
        runs = [("sluice", "bf16"), ("recompute", "fp32")]
        if harness.WHOLE:
            runs += [("sluice", "fp32"), ("recompute", "bf16")]
        for method, dtype in runs:
            with self.subTest(method=method, dtype=dtype):
                whole, rest = self.halves("--method", method, "--dtype", dtype)
                self.assertEqual(whole[3:], rest)
                self.same_files("*.safetensors")

    def test_gpt_resumes_bit_for_bit(self):
        whole, rest = self.halves("--arch", "gpt")
        self.assertEqual(whole[3:], rest)
        self.same_files("*.safetensors")

    def test_another_number_of_ranks_resumes_within_rounding(self):
        runs = [("1", "2"), ("2", "1")] + [("2", "4")] * harness.WHOLE
        for first, second in runs:
            with self.subTest(first=first, second=second):
                whole, rest = self.halves(first=("--ranks", first),
                                          second=("--ranks", second))
                for a, b in zip(whole[3:], rest, strict=True):
                    self.assertLess(abs(a - b), 1e-4)
                said = self.lines("--ranks", first, "--data", self.text,
                                  "--steps", "6", "--resume",
                                  self.path("half"))
                self.assertIn(
                    f"the saved plan is not for this run (it was made for "
                    f"{second} ranks, this run has {first}): planned anew",
                    said)

    def test_checkpoints_have_hugging_faces_tensor_names(self):
        self.saved("llama", 1)
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
        for path in (folder, self.path("gpt/checkpoint-1/")):
            with open(path + "config.json", encoding="utf-8") as file:
                config = json.load(file)
            # Without these keys transformers would use its default: GPT-2's is
            # 50256.
            for key in ("bos_token_id", "eos_token_id"):
                self.assertIsNone(config.get(key, "transformers' own"), path)

    def edit(self, path, change):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(change(text))

    def test_an_invalid_saved_plan_is_replaced(self):
        whole = self.saved("whole", 6)["losses"]
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

        def of_another_rank(text):
            saved = json.loads(text)
            plan = json.loads(saved["plan"])
            plan["ranks"][0]["rank"] = 1
            return json.dumps({**saved, "plan": json.dumps(plan)})

        for change in (lambda _: '{"key": 3}', shifted, of_another_rank,
                       lambda t: json.dumps({**json.loads(t), "plan": 3})):
            self.saved("broken", 3)
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
                                "no new plan was made")
            shutil.rmtree(self.path("broken"))

    def test_a_shard_of_another_rank_is_refused(self):
        # A shard belongs to one rank, even if another rank's has the same
        # size.
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

    def lines(self, *arguments, status=0):
        """Returns the lines on stderr of a run that exits with `status`; of a
        refusal, its one error line."""
        code, _, err = self.run_train(*harness.MODEL, *FLAGS, *arguments)
        self.assertEqual(code, status, err)
        said = err.splitlines()
        if status != 0:
            said = [line for line in said if line.startswith("error:")]
            self.assertEqual(len(said), 1, err)
        return said

    def state_of(self, name):
        with open(self.path(name + "/trainer_state.json"),
                  encoding="utf-8") as file:
            return json.load(file)

    def test_a_resumed_run_names_its_checkpoint_and_keeps_its_id(self):
        save = self.path("save")
        first = self.saved("save", 2)
        second = self.train(*FLAGS, "--steps", "3", "--save", save, "--resume",
                            save)
        self.assertEqual(len(first["run"]), 16)
        self.assertIsNone(first["resumed"])
        self.assertEqual(second["run"], first["run"])
        self.assertEqual(second["resumed"],
                         {"checkpoint": save + "/checkpoint-2", "step": 2,
                          "run": first["run"]})
        self.assertEqual(self.state_of("save/checkpoint-3")["run"],
                         first["run"])
        said = self.lines("--data", self.text, "--steps", "4", "--resume", save)
        self.assertIn(f"goes on from {save}/checkpoint-3: step 3 of run "
                      f"{first['run']}", said)

    def test_two_runs_do_not_save_into_one_folder(self):
        save = self.path("save")
        first = self.saved("save", 2)
        said = self.lines("--data", self.text, "--steps", "5", "--save", save,
                          status=2)
        self.assertIn(f"checkpoint-2 of run {first['run']}", said[0])
        self.assertIn("--resume " + save, said[0])
        # Checkpoints of two runs in one folder are refused.
        other = self.path("other")
        self.saved("other", 3)
        shutil.move(other + "/checkpoint-3", save)
        said = self.lines("--data", self.text, "--steps", "5", "--resume",
                          save, status=2)
        self.assertIn("checkpoints of 2 runs", said[-1])
        self.lines("--data", self.text, "--steps", "3", "--resume",
                   save + "/checkpoint-2")

    def test_only_one_process_at_a_time_saves_into_a_folder(self):
        save = self.path("save")
        command = [harness.TRAIN, "train", *harness.MODEL, *FLAGS, "--data",
                   self.text, "--steps", "100000", "--save", save,
                   "--save-every", "20"]
        first = self.start(command, stderr=subprocess.PIPE)
        self.wait_until(lambda: os.path.isdir(save + "/checkpoint-20"),
                        "no checkpoint is saved")
        said = self.lines("--data", self.text, "--steps", "9", "--save", save,
                          "--resume", save, status=2)
        self.assertIn("another run is saving into it now", said[-1])
        self.assertIsNone(first.poll())

    def test_an_old_checkpoint_is_not_resumed_beside_newer_ones(self):
        save = self.path("save")
        self.train(*FLAGS, "--steps", "4", "--save", save, "--save-every", "2")
        said = self.lines("--data", self.text, "--steps", "6", "--save", save,
                          "--resume", save + "/checkpoint-2", status=2)
        self.assertIn("checkpoint-4 of this run, which goes on from step 2",
                      said[-1])
        self.train(*FLAGS, "--steps", "6", "--save", self.path("branch"),
                   "--resume", save + "/checkpoint-2")

    def test_another_text_is_refused_with_the_remedy(self):
        save = self.path("save")
        first = self.saved("save", 2)
        other = self.path("other.txt")
        with open(other, "w", encoding="utf-8") as file:
            file.write("another text\n" * 2000)
        resume = ["--data", other, "--steps", "3", "--resume", save]
        said = self.lines(*resume, status=2)
        self.assertIn(f"run {first['run']} was trained on another text",
                      said[0])
        self.assertIn("--allow-other-data", said[0])
        self.lines(*resume, "--allow-other-data")
        # The same text at another path is accepted.
        moved = shutil.copy(self.text, self.path("moved"))
        self.lines("--data", moved, "--steps", "3", "--resume", save)

    def test_keep_checkpoints_leaves_the_newest(self):
        save = self.path("save")
        result = self.train(*FLAGS, "--steps", "5", "--save", save,
                            "--save-every", "1", "--keep-checkpoints", "2")
        self.assertEqual(sorted(os.listdir(save)),
                         ["checkpoint-4", "checkpoint-5"])
        self.assertEqual(result["saves"], {"done": 5, "failed": 0,
                                           "last_step": 5,
                                           "last_failure": None})
        self.train(*FLAGS, "--steps", "6", "--save", save, "--resume", save,
                   "--keep-checkpoints", "1")
        self.assertEqual(os.listdir(save), ["checkpoint-6"])

    def test_a_cut_or_empty_checkpoint_is_passed_over(self):
        save = self.path("save")
        self.train(*FLAGS, "--steps", "3", "--save", save, "--save-every", "1")
        os.mkdir(save + "/checkpoint-9")
        weights = save + "/checkpoint-3/optimizer-0-of-1.safetensors"
        with open(weights, "r+b") as file:
            file.truncate(os.path.getsize(weights) - 1)
        said = self.lines("--data", self.text, "--steps", "4", "--resume",
                          save, "--save", save)
        line = [line for line in said if "goes on from" in line]
        self.assertEqual(len(line), 1, said)
        self.assertIn("checkpoint-2: step 2 of run", line[0])
        self.assertIn("checkpoint-9 is not whole", line[0])
        self.assertIn("checkpoint-3 is not whole", line[0])

    def test_another_length_neither_skips_nor_repeats_tokens(self):
        save = self.path("save")
        one = ["--private", "--accumulate", "1"]
        self.train(*one, "--seq-len", "300", "--steps", "4", "--save", save)
        self.assertEqual(self.state_of("save/checkpoint-4")["next_token"],
                         4 * 300)
        self.train(*one, "--seq-len", "700", "--steps", "6", "--resume",
                   save, "--save", save)
        self.assertEqual(self.state_of("save/checkpoint-6")["next_token"],
                         4 * 300 + 2 * 700)

    def test_a_resumed_run_plans_anew_for_a_smaller_host(self):
        save = self.path("save")
        big = ["--private", "--seq-len", "8000", "--hbm", "24MiB",
               "--no-keep"]
        first = self.train(*big, "--host", "256MiB", "--steps", "1", "--alpha",
                           "auto", "--save", save)
        small = first["host_bytes"] * 3 // 4
        code, out, err = self.run_train(
            *harness.MODEL, *big, "--json", "--data", self.text, "--host",
            f"{small}B", "--steps", "2", "--resume", save)
        self.assertEqual(code, 0, err)
        self.assertLessEqual(json.loads(out)["host_bytes"], small)
        self.assertIn("the saved plan does not fit here", err)

    def test_a_checkpoint_of_format_1_is_read(self):
        save = self.path("save")
        whole = self.train(*FLAGS, "--steps", "4")
        self.saved("save", 2)

        def former(text):
            state = json.loads(text)
            del state["run"], state["data"], state["next_token"]
            # The next sequence is 4 after two steps of two sequences. Format 1
            # divided shards by whole mebibytes, which makes no difference for
            # one rank and so little data.
            return json.dumps({**state, "format": 1, "next_sequence": 4})

        self.edit(save + "/checkpoint-2/trainer_state.json", former)
        rest = self.train(*FLAGS, "--steps", "4", "--resume", save, "--save",
                          save)
        self.assertEqual(rest["losses"], whole["losses"][2:])
        self.assertEqual(rest["resumed"]["run"], "")
        self.assertEqual(self.state_of("save/checkpoint-4")["run"],
                         rest["run"])

        def later(text):
            return json.dumps({**json.loads(text), "format": 4})

        self.edit(save + "/checkpoint-4/trainer_state.json", later)
        said = self.lines("--data", self.text, "--steps", "5", "--resume",
                          save, status=2)
        self.assertIn("format 4, written by a newer sluice-train", said[-1])

    def test_shards_of_format_2_are_read(self):
        """Format 2 halved the model as a whole. Today's format halves each of
        four parts: embedding, layer 0, layer 1, and final norm with head."""
        parts = [16384, 30848, 30848, 16448]
        save = self.path("save")
        flags = [*FLAGS, "--ranks", "2", "--steps"]
        whole = self.train(*flags, "4")
        self.train(*flags, "2", "--save", save)
        shards = [f"{save}/checkpoint-2/optimizer-{rank}-of-2.safetensors"
                  for rank in (0, 1)]
        for name in ("m", "v"):
            own = [tensors_of(shard)[name][2] for shard in shards]
            self.assertEqual(list(map(len, own)), 2 * [2 * sum(parts)])
            model, at = b"", 0
            for part in parts:
                model += b"".join(half[at:at + 2 * part] for half in own)
                at += 2 * part
            for rank, shard in enumerate(shards):
                replace_tensor(shard, name,
                               model[rank * at:(rank + 1) * at])
        self.edit(save + "/checkpoint-2/trainer_state.json",
                  lambda text: json.dumps({**json.loads(text), "format": 2}))
        rest = self.train(*flags, "4", "--resume", save)
        self.assertEqual(rest["losses"], whole["losses"][2:])

    def test_each_rank_saves_its_half_and_reads_its_shard(self):
        save = self.path("save")
        self.train(*FLAGS, "--ranks", "2", "--steps", "1", "--save", save)
        sizes = []
        for rank in (0, 1):
            shard = f"{save}/checkpoint-1/optimizer-{rank}-of-2.safetensors"
            sizes.append(tensors_of(shard)["m"][1][0])
        # Each rank has half of the small model's optimizer states.
        self.assertLess(abs(sizes[0] - sizes[1]), 64)
        with open(shard, "r+b") as file:
            file.truncate(os.path.getsize(shard) - 1)
        said = self.lines("--data", self.text, "--ranks", "2", "--steps", "2",
                          "--resume", save, status=2)
        self.assertIn("optimizer-1-of-2.safetensors", said[-1])

    def test_a_finished_run_has_nothing_to_do(self):
        save = self.path("save")
        self.saved("save", 2)
        for steps in ("2", "1"):
            code, _, err = self.run_train(
                *harness.MODEL, *FLAGS, "--data", self.text, "--steps", steps,
                "--resume", save)
            self.assertEqual(code, 0, err)
            self.assertIn("nothing to do: step 2", err)

    def test_a_broken_checkpoint_gives_one_clear_line(self):
        save = self.path("save")
        self.saved("save", 1)
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
