#!/usr/bin/env python3
"""./verify on the strict fake driver: it passes there, and each injected fault
fails the check that must detect it.

    verify_test.py BIN_FOLDER FAKE_FOLDER [unittest's arguments]

BIN_FOLDER has `verify` and the programs that it runs: the release build's in
the ordinary tests, the unpacked archive's in bundle_test.sh.
"""

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import unittest

from kit import BIN, FAKE, ROOT, Verify

OF_TORCH = {"torch", "gradients", "training", "memory", "throughput"}

class Passes(Verify):
    def test_all_checks_pass_and_the_archive_names_no_machine(self):
        checks = self.verify()
        for name, check in checks.items():
            self.assertEqual(set(check), {"name", "status", "seconds", "value",
                                          "expected", "reason"})
            # Skipped without --python; the run counts as passed all the same.
            if name in OF_TORCH:
                self.assertEqual(check["status"], "skipped")
                self.assertIn("needs --python PATH", check["reason"])
                continue
            self.assertEqual(check["status"], "passed", (name, self.said))
        self.assertLessEqual(OF_TORCH, set(checks))
        self.assertEqual(self.status, 0, self.said)
        files = self.archive()
        self.assertLess(sum(map(len, files.values())), 8 << 20)
        for name, text in files.items():
            for told in (self.folder, os.uname().nodename, BIN):
                self.assertNotIn(told, text, name)
        self.nothing_runs()
        self.assertEqual(os.listdir(self.nodes), [])

    def test_links_become_a_hardware_file_that_the_planner_reads(self):
        checks = self.verify("--only", "links", fake="gpus=1")
        self.assertEqual(checks["links"]["status"], "passed", self.said)
        text = self.archive()["sluice-verify-test/links-hardware.toml"]
        hardware = tomllib.loads(text)
        gpu, = checks["links"]["value"]["gpus"]
        together = gpu["together"]
        self.assertEqual(hardware["links"]["host_bytes_per_s"],
                         min(together["h2d_bytes_per_second"],
                             together["d2h_bytes_per_second"]))
        self.assertEqual(hardware["gpu"]["memory_bytes"], 64 << 20)
        # `peak_flops` is h100-80g's, since ./verify does not measure it.
        self.assertRegex(text, "peak_flops = .*# h100-80g")
        planner = BIN + "/sluicectl"  # the kit's archive has no sluicectl
        if os.path.exists(planner):
            path = self.folder + "/hardware.toml"
            with open(path, "w") as file:
                file.write(text)
            planned = subprocess.run(
                [planner, "plan", "train", "--hardware", path, "--model",
                 "llama-8b", "--gpus", "1", "--seq-len", "128K"],
                text=True, capture_output=True)
            self.assertEqual(planned.returncode, 3, planned.stderr)
            self.assertIn("llama-8b on 1 x measured-fake-gpu, 128K tokens, "
                          "sluice: does not fit", planned.stdout)

    def test_a_busy_gpu_is_skipped_and_not_passed(self):
        # A file of the fake node holds half of GPU 1, as a process would.
        node = self.folder + "/node"
        os.mkdir(node)
        with open(node + "/memory-1-1-1-0", "wb+") as held:
            held.truncate(32 << 20)
            fcntl.flock(held, fcntl.LOCK_SH)
            checks = self.verify("--only", "conformance",
                                 fake="gpus=2,node=" + node)
        self.assertEqual(checks["conformance"]["status"], "skipped")
        self.assertRegex(checks["conformance"]["reason"], "GPU 1: 32 MiB")
        self.assertEqual(list(checks["conformance"]["value"]), ["gpu0"])
        self.assertEqual(self.status, 3, self.said)

    def test_a_limit_of_locked_memory_is_reported_with_its_remedy(self):
        checks = self.verify(
            "--only", "doctor", before=lambda: resource.setrlimit(
                resource.RLIMIT_MEMLOCK, (65536, 65536)))
        line, = (each for each in checks["doctor"]["value"]["lines"]
                 if each["what"] == "locked memory")
        self.assertEqual(line["health"], "warning")
        self.assertIn("at most 64 KiB", line["said"])
        self.assertEqual(line["fix"], "prlimit --pid $$ --memlock=unlimited")

    def test_a_wrong_argument_gives_one_line(self):
        for arguments, said in (
                (["--only", "moon"], "there is no check 'moon'"),
                (["--python", "/usr/bin/no-python"], "no such program"),
                (["--only", "gradients"], "add --python PATH"),
                (["--out", "/nonexistent"], "no such folder")):
            done = subprocess.run([BIN + "/verify", *arguments], text=True,
                                  env=self.environment(None),
                                  capture_output=True)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(said, done.stderr)


class Rules(Verify):
    """The check `rules` records a driver's answers in a rules diff. The fake
    driver can read the diff and then gives the same answers."""

    def ask(self, fake):
        checks = self.verify("--only", "rules", fake=fake)
        self.assertEqual(checks["rules"]["status"], "passed", checks["rules"])
        value = checks["rules"]["value"]
        self.assertEqual(
            self.archive()["sluice-verify-test/rules-rules.diff"],
            value["diff"])
        return value

    def test_the_fake_answers_as_assumed(self):
        value = self.ask("gpus=2")
        self.assertEqual(value["differs"], [])
        answered = [line for line in value["diff"].splitlines()
                    if "answer=" in line]
        with open(ROOT + "/tests/fake_cuda/rules.h") as table:
            assumed = table.read().count(", assumed, ")
        self.assertEqual(value["not_asked"], [])
        self.assertEqual(len(answered), assumed)

    # Answers that differ from the assumed ones. By rule: the call's code, and
    # the code of a later wait.
    PLAYED = {"NotForked": (801, 0), "ReleaseNeedsContext": (0, 0),
              "WholeMemory": (0, 0), "UnmapIdle": (0, 0),
              "FreeUnmapped": (0, 0), "RegisterWritable": (801, 0),
              "UnregisterIdle": (0, 0), "StreamOfContext": (0, 0),
              "CopyAccess": (0, 700), "CopyOneRegistration": (0, 0),
              "OperationPinned": (0, 700), "FillPinned": (0, 0)}

    def test_the_answers_of_a_diff_are_given_and_recorded(self):
        lines = self.ask("gpus=2")["diff"].splitlines(keepends=True)
        for i, line in enumerate(lines):
            name, *_ = line.split()
            if name in self.PLAYED:
                code, then = self.PLAYED[name]
                lines[i] = (line[:line.index("answer=")] +
                            f"answer={code} then={then}\n")
        played = self.folder + "/played.diff"
        with open(played, "w") as file:
            file.writelines(lines)
        value = self.ask("gpus=2,rules=" + played)
        self.assertEqual(value["diff"], "".join(lines))
        self.assertEqual(len(value["differs"]), len(self.PLAYED))

    def test_measured_answers_are_given(self):
        folder = ROOT + "/tests/fake_cuda/measured/"
        for name in os.listdir(folder):
            with open(folder + name) as file:
                measured = [line for line in file if line[0] != "#"]
            checks = self.verify("--only", "rules",
                                 fake="gpus=1,rules=" + folder + name)
            diff = checks["rules"]["value"]["diff"].splitlines(keepends=True)
            played = [line for line in diff if line[0] != "#"]
            self.assertEqual(len(played), len(measured))
            for line, wanted in zip(played, measured):
                if "answer=" in wanted:
                    self.assertEqual(line, wanted)

    def test_rules_that_need_two_gpus_are_skipped_on_one(self):
        checks = self.verify("--only", "rules", fake="gpus=1")
        self.assertEqual(checks["rules"]["status"], "skipped")
        self.assertRegex(checks["rules"]["reason"], "StreamOfContext.*2 GPUs")
        self.assertEqual(self.status, 3)

    def test_a_diff_of_another_table_is_refused(self):
        played = self.folder + "/played.diff"
        with open(played, "w") as file:
            file.write("UnmapIdle assumed=7 answer=0 then=0\n")
        checks = self.verify("--only", "rules", fake="gpus=2,rules=" + played)
        self.assertEqual(self.status, 3)
        self.assertIn("no assumed rule of rules.h fits 'UnmapIdle",
                      checks["rules"]["reason"])


class Faults(Verify):
    """Each injected fault makes the check that must detect it fail."""

    def test_a_missing_driver_fails_doctor(self):
        self.expect_fails("doctor", "libcuda.so.1", fake=None)

    def test_a_driver_that_does_not_start_fails_doctor(self):
        self.expect_fails("doctor", "cuInit", fake="fail=cuInit:1:999")

    def test_a_lost_gpu_fails_doctor(self):
        self.expect_fails("doctor", "DEVICE_UNAVAILABLE", fake="gpus=2,lose=1")

    def test_an_exclusive_gpu_fails_doctor_with_a_remedy(self):
        self.expect_fails("doctor", r"compute mode.*remedy: nvidia-smi "
                          r"-i GPU-\S+ -c 0$", fake="compute_mode=3")

    def test_a_large_granularity_fails_doctor(self):
        self.expect_fails("doctor", "granularity is 3145728 bytes",
                          fake="gpu_granularity_kib=3072")

    def test_a_failing_call_fails_conformance(self):
        self.expect_fails("conformance", "cuMemMap",
                          fake="fail=cuMemMap:2:999")

    def test_a_wrong_byte_fails_conformance(self):
        self.expect_fails("conformance", "GPU 0", fake="corrupt=3")

    def test_a_wrong_byte_fails_links(self):
        self.expect_fails("links", "GPU 0: byte .* differs after",
                          fake="gpus=2,corrupt=3")

    def test_copies_that_never_end_fail_links(self):
        self.expect_hangs("links", "GPU 0 alone to the GPU", (2, 8, 32),
                          fake="hang=cuEventQuery:3")
        self.nothing_runs()

    def test_memory_kept_after_a_death_fails_daemon(self):
        self.expect_fails("daemon", "GPU 0: 48 MiB more are in use than before",
                          fake="keep_dead=1")

    def test_a_wrong_byte_fails_daemon(self):
        self.expect_fails("daemon", "the rank of GPU 0 says: byte .* is not",
                          fake="corrupt=1")
        self.nothing_runs()

    def test_a_driver_that_shares_no_memory_fails_daemon(self):
        self.expect_fails("daemon", "says: .*cuMemImportFromShareableHandle",
                          fake="fail=cuMemImportFromShareableHandle:1:999")

    def test_a_keeper_that_keeps_nothing_fails_daemon(self):
        kit = self.folder + "/kit"
        os.mkdir(kit)
        shutil.copy2(BIN + "/verify", kit)
        for program in "sluiced", "sluice-worker":
            os.symlink(f"{BIN}/{program}", f"{kit}/{program}")
        keeper = kit + "/sluiced-keeper"
        with open(keeper, "w") as script:
            script.write('#!/bin/sh\nfor daemon in first next; do\n'
                         f'  {BIN}/sluiced --runtime-dir "$2" "$4" "$5"\n'
                         'done\n')
        os.chmod(keeper, 0o700)
        self.expect_fails("daemon", "the next daemon did not take over .*: it "
                          "knows 0 B", kit=kit)
        self.nothing_runs()

    def test_streams_that_do_not_wait_fail_conformance(self):
        self.expect_fails("conformance", "GPU 0",
                          fake="forget_waits=1,jitter_us=20000")

    def test_a_wrong_kernel_fails_kernels(self):
        forms = FAKE + "/logf/libfake_cuda_kernels.so"
        self.expect_fails("kernels", "AgreesWithTheCpu",
                          fake="kernels=" + forms)

    def test_a_write_beyond_the_result_fails_kernels(self):
        forms = FAKE + "/beyond/libfake_cuda_kernels.so"
        self.expect_fails("kernels", "the kernel wrote outside its results",
                          fake="kernels=" + forms)

    def test_a_call_that_never_returns_fails_conformance(self):
        # The check ends the hanging suite shortly before its limit of 4 s, or
        # else ./verify ends the check.
        self.expect_fails("conformance", "did not end within [34]", "--limit",
                          "4", fake="hang=cuMemUnmap:1")
        self.nothing_runs()

    def test_a_driver_that_never_answers_fails_doctor(self):
        self.expect_fails("doctor", "process did not end within 2 ?s",
                          "--limit", "2", fake="hang=cuDeviceGetName:1")
        self.nothing_runs()

    def test_a_missing_program_fails_conformance(self):
        kit = self.folder + "/kit"
        os.mkdir(kit)
        shutil.copy2(BIN + "/verify", kit)
        self.expect_fails("conformance", "no .*conformance_test", kit=kit)


class Aborts(Verify):
    def await_check(self, process, name):
        """Waits until `process` has started the check `name` and returns the
        check's pid."""
        for _ in range(400):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        words = file.read().split(b"\0")
                    with open(f"/proc/{pid}/stat") as file:
                        parent = int(file.read().rsplit(")", 1)[1].split()[1])
                except OSError:
                    continue
                if parent == process.pid and words[1:3] == [
                        b"--check", name.encode()]:
                    return int(pid)
            time.sleep(0.02)
        self.fail("no such check: " + name)

    HANGS = "hang=cuMemUnmap:1"

    def test_ctrl_c_leaves_an_archive_with_the_checks_so_far(self):
        process = self.start("--only", "doctor,conformance", fake=self.HANGS)
        self.await_check(process, "conformance")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertEqual(self.archived(), {"doctor": "passed",
                                           "conformance": "failed"})
        self.nothing_runs()
        self.assertEqual(os.listdir(self.folder),
                         ["sluice-verify-test.tar.gz"])

    def test_kill_9_of_verify_also_ends_the_daemon_of_its_check(self):
        process = self.start("--only", "daemon",
                             fake="hang=cuMemImportFromShareableHandle:1")
        pid = self.await_check(process, "daemon")
        for _ in range(400):
            with open(f"/proc/{pid}/task/{pid}/children") as children:
                # The keeper and a rank are running.
                if len(children.read().split()) > 1:
                    break
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=60)
        self.nothing_runs()
        self.assertEqual(os.listdir(self.folder),
                         ["sluice-verify-test.tar.gz"])

    def test_kill_9_of_verify_leaves_an_archive_and_no_process(self):
        process = self.start("--only", "doctor,conformance", fake=self.HANGS)
        self.await_check(process, "conformance")
        process.kill()
        process.communicate(timeout=60)
        self.assertEqual(self.archived(), {"doctor": "passed"})
        self.nothing_runs()
        self.assertEqual(os.listdir(self.folder),
                         ["sluice-verify-test.tar.gz"])

    def test_a_killed_check_fails_alone(self):
        process = self.start("--only", "conformance,doctor", fake=self.HANGS)
        pid = self.await_check(process, "conformance")
        os.kill(pid, signal.SIGKILL)
        out, said = process.communicate(timeout=60)
        checks = {c["name"]: c for c in json.loads(out)["checks"]}
        self.assertEqual(checks["doctor"]["status"], "passed", said)
        self.assertIn("ended by signal 9", checks["conformance"]["reason"])
        self.nothing_runs()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
