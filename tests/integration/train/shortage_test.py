"""The error names the resource that ran out, and a run is reported as not
fitting only for lack of memory."""

import json
import os
import resource
import subprocess
import unittest

import harness

DOES_NOT_FIT, DISK_FULL, OPEN_FILES = 3, 4, 5
RUN = [*harness.MODEL, "--private", "--seq-len", "300", "--json"]


def in_small_disk(folder, size, command, after="true"):
    """Returns `command` in its own mount namespace, with a tmpfs on `folder`.
    The shell command `after` runs in that namespace after `command`."""
    script = (f"mount -t tmpfs -o size={size} none {folder} || exit 99\n"
              f'"$@"\ncode=$?\n{after} >&2\nexit $code')
    return ["unshare", "-rm", "sh", "-c", script, "sh", *command]


class Shortage(harness.TrainTest):
    def setUp(self):
        super().setUp()
        self.disk = self.path("disk")
        os.mkdir(self.disk)

    def run_in_disk(self, size, *arguments, after="true"):
        process = self.start(
            in_small_disk(self.disk, size,
                          [harness.TRAIN, "train", *RUN, "--data", self.text,
                           *arguments], after),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=120)
        if process.returncode in (1, 99) and ("unshare" in err
                                              or "mount" in err):
            self.skipTest("no mount namespace to be had: " + err)
        return process.returncode, out, err

    def test_a_full_disk_is_not_taken_for_a_small_gpu(self):
        code, out, err = self.run_in_disk(
            "100k", "--steps", "2", "--save", os.path.join(self.disk, "save"))
        self.assertEqual(code, DISK_FULL, err)
        result = json.loads(out)
        self.assertEqual((result["fits"], result["limited_by"]),
                         (True, "disk"))
        self.assertIn("No space left", result["message"])
        self.assertNotIn("seq-len", err)

    def test_a_failed_save_ends_no_run(self):
        # A file fills the disk, so the first saves fail. It is removed after
        # step 3, and later saves succeed.
        save = os.path.join(self.disk, "save")
        log = self.path("log.jsonl")
        filler = os.path.join(self.disk, "filler")
        script = (f"mount -t tmpfs -o size=6m none {self.disk} || exit 99\n"
                  f"dd if=/dev/zero of={filler} bs=512k count=11 2>/dev/null\n"
                  f"(while ! grep -q '\"step\":3,' {log} 2>/dev/null; do "
                  f"sleep 0.05; done; rm {filler}) & \n"
                  f'"$@"\ncode=$?\nls {save}\nexit $code')
        process = self.start(
            ["unshare", "-rm", "sh", "-c", script, "sh", harness.TRAIN,
             "train", *RUN, "--data", self.text, "--steps", "60", "--save",
             save, "--save-every", "1", "--keep-checkpoints", "2",
             "--log-jsonl", log],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=200)
        if "unshare" in err or "mount:" in err:
            self.skipTest("no mount namespace to be had: " + err)
        self.assertEqual(process.returncode, 0, err)
        result = json.loads(out.splitlines()[0])
        saves = result["saves"]
        self.assertEqual(result["steps"], 60)
        self.assertEqual(saves["done"] + saves["failed"], 60)
        self.assertGreaterEqual(saves["failed"], 2)
        self.assertEqual(saves["last_step"], 60)
        self.assertEqual(saves["last_failure"]["limited_by"], "disk")
        self.assertIn("step 1 is not saved: ", err)
        self.assertIn("No space left", err)
        self.assertEqual(out.splitlines()[1:],
                         ["checkpoint-59", "checkpoint-60"])

    def test_a_log_on_a_full_disk_ends_no_run(self):
        code, out, err = self.run_train(
            *RUN, "--data", self.text, "--steps", "3", "--log-jsonl",
            "/dev/full")
        self.assertEqual(code, 0, err)
        result = json.loads(out)
        self.assertEqual((result["ok"], result["steps"]), (True, 3))
        self.assertEqual(result["log_lines_unwritten"], 3)
        self.assertEqual(err.count("--log-jsonl /dev/full: No space left"), 1)

    def test_a_full_folder_of_temporary_files_is_named_too(self):
        # The launcher and its private daemon make files in TMPDIR.
        script = (f"mount -t tmpfs -o size=64k none {self.disk} || exit 99\n"
                  f"dd if=/dev/zero of={self.disk}/filler bs=4k 2>/dev/null\n"
                  f'TMPDIR={self.disk} "$@"')
        process = self.start(
            ["unshare", "-rm", "sh", "-c", script, "sh", harness.TRAIN,
             "train", *RUN, "--data", self.text, "--steps", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=harness.PATIENCE_S)
        if "unshare" in err or "mount:" in err:
            self.skipTest("no mount namespace to be had: " + err)
        self.assertEqual(process.returncode, DISK_FULL, err)
        self.assertIn("No space left", err)
        self.assertNotIn("seq-len", err)

    def refuses_open_files(self, limit, *arguments):
        process = self.start(
            [harness.TRAIN, "train", *harness.MODEL, "--seq-len", "300",
             "--json", "--steps", "1", "--data", self.text, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                  (limit, limit)))
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, OPEN_FILES, err)
        result = json.loads(out)
        self.assertEqual((result["fits"], result["limited_by"]),
                         (True, "open_files"))
        self.assertIn("ulimit -n", err)
        self.assertNotIn("seq-len", err)

    def test_too_many_open_files_are_not_taken_for_a_small_gpu(self):
        # The private daemon reaches the limit of 48 files. A rank reaches 26
        # while it maps memory, and 16 while it receives descriptors.
        self.refuses_open_files(48, "--private")
        socket = self.daemon()
        for limit in (26, 16):
            self.refuses_open_files(limit, "--socket", socket, "--hbm",
                                    "64MiB")


if __name__ == "__main__":
    unittest.main()
