"""A run that is impossible is refused in one line, and leaves nothing behind.
"""

import json
import os
import re
import socket as socketlib
import subprocess
import unittest

import harness

BAD_INPUT, DOES_NOT_FIT = 2, 3
# harness.MODEL without --chunk.
SHAPE = harness.MODEL[:harness.MODEL.index("--chunk")]


class Refusal(harness.TrainTest):
    def refused(self, arguments, says, status=BAD_INPUT):
        code, out, err = self.run_train(*arguments, limit_s=60)
        self.assertEqual(code, status, (arguments, err))
        errors = [line for line in err.splitlines()
                  if line.startswith("error:")]
        self.assertEqual(len(errors), 1, err)
        self.assertIn(says, errors[0])
        self.assertNotIn("Exception", err)
        return out

    def test_bad_input_is_refused_by_its_name(self):
        short = self.path("short")
        with open(short, "w", encoding="utf-8") as file:
            file.write("too short")
        private = [*harness.MODEL, "--private"]
        cases = [
            (["--socket", "/no/such.sock"], "/no/such.sock"),
            # Refused before a step of that length is measured and planned.
            ([*private, "--seq-len", "10M", "--data", self.text],
             "--seq-len 10485760 needs 10485761"),
            # The advice for a user without a daemon.
            (["--socket", "/no/such.sock"], "with --private a run has one"),
            ([*private, "--data", "/no/such/file"], "/no/such/file"),
            ([*private, "--data", short], "9 tokens"),
            ([*private, "--data", self.folder, "--token-bytes", "2"],
             "--token-bytes 2: of the folder"),
            ([*private, "--ranks", "3", "--method", "alst"], "--ranks 3"),
            ([*private, "--log-jsonl", "/no/such/log", "--data", self.text],
             "/no/such/log"),
            ([*private, "--resume", self.path("nothing"), "--data", self.text],
             "nothing"),
            ([*private, "--save", "/proc/nothing", "--steps", "1", "--data",
              self.text, "--seq-len", "100"], "/proc/nothing"),
        ]
        for arguments, says in cases:
            with self.subTest(says):
                self.refused(arguments, says)

    def test_memory_beyond_the_machines_is_refused_at_once(self):
        for flag in ("--hbm", "--host"):
            self.refused([*harness.MODEL, "--private", flag, "100TiB",
                          "--data", self.text],
                         f"{flag} 100 TiB: ")

    def test_a_gpu_that_is_not_there_is_refused_by_name_and_limit(self):
        socket = self.daemon(gpus=2)
        self.refused([*harness.MODEL, "--socket", socket, "--data", self.text,
                      "--gpu", "5"], "--gpu 5: the node has GPUs 0 to 1")
        self.refused([*harness.MODEL, "--private", "--data", self.text,
                      "--gpu", "1"], "--gpu 1: the node has GPU 0 only")

    def test_an_unknown_flag_is_refused_by_its_name(self):
        for flags in ("--model x", "--lora", "--zero=3", "--rope-theta 5e5",
                      "--dropout 0.1"):
            self.refused([*harness.MODEL, "--private", *flags.split()],
                         flags.split()[0].split("=")[0])

    def test_a_picture_is_no_text_and_refused(self):
        picture = self.path("picture.png")
        with open(picture, "wb") as file:
            file.write(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(128))
                       * 80)
        run = [*harness.MODEL, "--private", "--seq-len", "100", "--steps", "1",
               "--data", picture]
        self.refused(run, f"--data {picture}: not text")
        # With --token-bytes the file is read as token ids.
        code, _, err = self.run_train(*run, "--token-bytes", "2", "--vocab",
                                      "65536")
        self.assertEqual(code, 0, err)

    def test_output_paths_are_tried_before_the_first_step(self):
        # So many steps would take longer than refused() waits.
        run = [*harness.MODEL, "--private", "--seq-len", "500", "--steps",
               "1000000", "--data", self.text]
        made = self.path("a/b")
        paths = [("--trace", "/no/such/trace"),
                 ("--save", os.path.join(self.text, "below")),
                 ("--trace", self.folder),
                 ("--save", "/proc/nothing")]
        for flag, path in paths if harness.WHOLE else paths[:2]:
            with self.subTest(flag=flag, path=path):
                self.refused([*run, flag, path], f"error: {flag} {path}")
        # A refused run leaves none of the folders that it tried to write.
        self.refused([*run, "--trace", "/no/such/trace", "--save", made],
                     "--trace")
        self.assertFalse(os.path.exists(os.path.dirname(made)))

    def test_an_output_pipe_without_a_reader_is_refused(self):
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        for flag in ("--log-jsonl", "--trace"):
            self.refused([*harness.MODEL, "--private", "--seq-len", "100",
                          "--data", self.text, flag, pipe],
                         f"{flag} {pipe}: nothing reads from it")

    def test_a_rank_of_torchrun_starts_no_daemon(self):
        for command, more in (("train", ["--private"]), ("check", [])):
            process = subprocess.run(
                [harness.TRAIN, command, *harness.MODEL, *more],
                env={**harness.clean_environment(), "RANK": "0",
                     "WORLD_SIZE": "1"}, capture_output=True, text=True,
                timeout=60, check=False)
            self.assertEqual(process.returncode, BAD_INPUT, process.stderr)
            self.assertIn("starts a daemon of its own", process.stderr)
            self.assertEqual(len(process.stderr.splitlines()), 1)

    def test_a_rank_with_other_flags_than_rank_0_is_refused(self):
        socket = self.daemon()
        for flags in (["--lr", "0.5"], ["--chunk", "64"]):
            with socketlib.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            ranks = [self.start(
                [harness.TRAIN, "train", *SHAPE, "--socket", socket, "--hbm",
                 "32MiB", "--data", self.text, "--seq-len", "300", "--steps",
                 "1", *own],
                {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT":
                 str(port)}, stderr=subprocess.PIPE)
                for rank, own in enumerate(([], flags))]
            said = [rank.communicate(timeout=60)[1] for rank in ranks]
            self.assertEqual(ranks[1].returncode, BAD_INPUT, said)
            self.assertIn(" ".join(flags), said[1])
            self.assertIn("give all ranks the same", said[1])

    def test_a_run_that_does_not_fit_names_the_memory(self):
        # A run is refused like its probe; with --deep each case does both.
        for i, (method, ranks, more, memory) in enumerate([
                ("keep-all", "1", ["--hbm", "8MiB"], "gpu_memory"),
                ("recompute", "2", ["--hbm", "6MiB"], "gpu_memory"),
                ("alst", "2", ["--hbm", "6MiB"], "gpu_memory"),
                ("alst", "2", ["--hbm", "64MiB", "--host", "3MiB"],
                 "host_memory"),
                ("sluice", "2", ["--hbm", "64MiB", "--host", "8MiB"],
                 "host_memory"),
                ("sluice", "1", ["--hbm", "2MiB"], "gpu_memory")]):
            with self.subTest(method=method, ranks=ranks, more=more):
                both = [], ["--probe"]
                for probe in both if harness.WHOLE else [both[i % 2]]:
                    out = self.refused(
                        [*harness.MODEL, "--private", "--seq-len", "8000",
                         "--data", self.text, "--json", "--method", method,
                         "--ranks", ranks, "--steps", "1", *more, *probe],
                        "", DOES_NOT_FIT)
                    result = json.loads(out)
                    self.assertFalse(result["fits"])
                    self.assertEqual(result["limited_by"], memory)
                    self.assertTrue(result["message"])

    def test_the_host_memory_that_a_refusal_names_is_enough(self):
        flags = [*harness.MODEL, "--private", "--seq-len", "4000", "--data",
                 self.text, "--json", "--method", "alst", "--ranks", "2",
                 "--steps", "1", "--hbm", "64MiB", "--host"]
        out = self.refused([*flags, "1536KiB"], "give --host", DOES_NOT_FIT)
        message = json.loads(out)["message"]
        size = re.search(r"give --host (\S+),", message).group(1)
        code, out, err = self.run_train(*flags, size, limit_s=60)
        self.assertEqual(code, 0, err)
        self.assertTrue(json.loads(out)["fits"])

    def test_states_that_do_not_fit_are_not_blamed_on_the_length(self):
        for method in ("recompute", "sluice"):
            out = self.refused(
                [*harness.MODEL, "--private", "--data", self.text, "--json",
                 "--method", method, "--hbm", "1MiB"],
                "on each GPU before any activation", DOES_NOT_FIT)
            result = json.loads(out)
            self.assertEqual(result["limited_by"], "gpu_memory")
            self.assertNotIn("--seq-len", result["message"])

    def test_an_exceeded_budget_is_named(self):
        socket = self.daemon(extra='[budgets]\njob_gpu_bytes = "8MiB"\n')
        out = self.refused(
            [*harness.MODEL, "--socket", socket, "--hbm", "16MiB", "--data",
             self.text, "--json"], "udget", DOES_NOT_FIT)
        self.assertEqual(json.loads(out)["limited_by"], "gpu_memory")
        self.assertEqual(self.leased(socket), 0)

    def test_a_private_daemon_says_that_it_is_simulated(self):
        code, out, err = self.run_train(
            *harness.MODEL, "--private", "--gpus", "2", "--seq-len", "0.25K",
            "--steps", "1", "--gpu-memory", "64MiB", "--data", self.text,
            "--json")
        self.assertEqual(code, 0, err)
        self.assertIn("note: simulated: a sluiced for this run with 2 GPUs of "
                      "64 MiB and 1 GiB of host memory", err)
        self.assertEqual(json.loads(out)["ok"], True)

    def test_a_run_that_fits_is_not_refused_for_its_calibration(self):
        run = ["--private", "--seq-len", "256", "--ranks", "2", "--steps", "1"]
        result = self.train(*run, "--host", "1200KiB")
        self.assertLessEqual(result["host_bytes"], 1200 * 1024)
        free = self.train(*run, "--host", "64MiB")
        self.assertAlmostEqual(result["last_loss"], free["last_loss"], 5)

    def test_a_run_keeps_to_its_own_host_limit_by_recomputing(self):
        socket = self.daemon(host_memory="64MiB")
        run = ["--socket", socket, "--seq-len", "256", "--ranks", "2",
               "--no-keep", "--steps", "1"]
        free = self.train(*run)
        self.assertGreater(free["host_bytes"], 1200 * 1024)
        held = self.train(*run, "--host", "1200KiB")
        self.assertLessEqual(held["host_bytes"], 1200 * 1024)
        self.assertGreater(held["host_bytes"], free["host_bytes"] / 2)
        self.assertAlmostEqual(held["last_loss"], free["last_loss"], 5)

    def test_alst_counts_its_layers_inputs_against_the_hosts_budget(self):
        # 2 layers of 2,000 rows of 64 fp32 each, on 2 ranks: 2 MB.
        flags = ["--method", "alst", "--seq-len", "4000", "--ranks", "2",
                 "--probe", "--hbm", "64MiB"]
        result = self.train("--private", *flags)
        needed = 2 * 4000 * 64 * 4
        self.assertGreaterEqual(result["host_bytes"], needed)
        self.assertLess(result["host_bytes"], needed + 2 * 2**16)  # rounded
        socket = self.daemon(extra='[budgets]\njob_host_bytes = "1MiB"\n')
        out = self.refused(
            [*harness.MODEL, "--socket", socket, "--data", self.text, "--json",
             *flags], "udget", DOES_NOT_FIT)
        self.assertEqual(json.loads(out)["limited_by"], "host_memory")
        self.assertEqual(self.leased(socket), 0)

    def test_a_probe_without_json_prints_one_sentence(self):
        code, out, err = self.run_train(
            *harness.MODEL, "--private", "--probe", "--seq-len", "500",
            "--method", "recompute", "--hbm", "64MiB", limit_s=60)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^fits: \S+ MiB of 64 MiB of GPU memory per "
                         r"rank, 0 B of host memory\n$")

    def test_a_probe_says_that_a_run_fits(self):
        methods = "recompute", "sluice", "keep-all", "alst"
        for method in methods if harness.WHOLE else methods[:2]:
            result = self.train("--private", "--probe", "--method", method,
                                "--seq-len", "700", "--ranks", "2")
            self.assertTrue(result["fits"])
            self.assertTrue(result["ok"])
            self.assertGreater(result["peak_hbm_bytes"], 0)

    def test_a_non_finite_loss_stops_the_run_and_names_the_step(self):
        code, out, err = self.run_train(
            *harness.MODEL, "--private", "--data", self.text, "--seq-len",
            "200", "--steps", "50", "--lr", "1e3", "--warmup", "0", "--clip",
            "0", "--json")
        self.assertEqual(code, 1)
        # The run did fit, and failed for another reason.
        result = json.loads(out)
        self.assertEqual((result["ok"], result["fits"], result["limited_by"]),
                         (False, True, "none"))
        self.assertRegex(err, r"error: step \d+: the loss is \S+ and the "
                              r"gradient norm -?(nan|inf)")
        self.assertRegex(err, r"\(lr 1e\+03, fp32\)")
        self.assertRegex(err,
                         r"lower --lr \(it was 1e\+03.*--clip 1; it is off")
        self.assertRegex(err, r"(the weight \S+ \(element \d+\) is not finite|"
                              r"all weights are finite|backward overflowed)")

    def test_a_run_leaves_no_temporary_files(self):
        temporary = self.path("tmp")
        os.mkdir(temporary)
        for more in (["--steps", "1"], ["--data", "/no/such"],
                     ["--hbm", "1MiB"]):
            subprocess.run(
                [harness.TRAIN, "train", *harness.MODEL, "--private",
                 "--seq-len", "200", "--data", self.text, *more],
                env={**harness.clean_environment(), "TMPDIR": temporary},
                stderr=subprocess.DEVNULL, timeout=60, check=False)
            self.assertEqual(os.listdir(temporary), [], more)


if __name__ == "__main__":
    unittest.main()
