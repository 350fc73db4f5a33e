#!/usr/bin/env python3
"""Tests that every ordering, wait and abort of ranks on GPUs is needed:
nccl_defects_test.py BUILD [NAME…].

Builds the module sluice_torch_nccl with a piece of code removed from
nccl_ranks.cc, and expects nccl_ranks_test to fail with it: by a race or another
finding of the fakes, a hang, a wrong value or a wrong message. SURVIVORS lists
the removals that no test detects, with the reason."""

import json
import os
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "../../.."))
SOURCE = "client/torch/cuda/nccl_ranks.cc"
MODULE = "lib/libsluice_torch_nccl.so"

ASKED = "    SLUICE_RETURN_IF_ERROR(Check());\n"
# Name -> (removed text, which occurs once, and its replacement).
DEFECTS = {
    "the stream does not wait for an operation":
        ("      if (waits) work->wait();\n", ""),
    "the stream does not wait for operations that were begun":
        ("[&] { work->wait(); }", "[] {}"),
    "operations that were begun outlive the ranks":
        ("    AwaitBegun().IgnoreError();\n", ""),
    "the result of a reduce-scatter is in the wrong place":
        ("options_.rank * size", "0 * size"),
    "an operation begins without a check":
        ("(CheckSendable(what, tensor));\n" + ASKED,
         "(CheckSendable(what, tensor));\n"),
    "a tensor is sent without a check":
        ("    SLUICE_RETURN_IF_ERROR(CheckSendable(what, tensor));\n", ""),
    "a tensor is received without a check":
        ('    SLUICE_RETURN_IF_ERROR(CheckSendable("all-to-all", receive));\n',
         ""),
    "a tensor of another device is sent":
        ("if (tensor.device() != options_.device) {", "if (false) {"),
    "a strided tensor is sent":
        ("if (tensor.is_contiguous()) return absl::OkStatus();",
         "return absl::OkStatus();"),
    "the communicator of another GPU is queried":
        ("    const c10::cuda::CUDAGuard guard(options_.device);\n", ""),
    "a missing communicator is queried":
        ("if (!aborted_.ok() || !connected_) return aborted_;",
         "if (!aborted_.ok()) return aborted_;"),
    "an aborted communicator is queried":
        ("if (!aborted_.ok() || !connected_) return aborted_;",
         "if (!connected_) return aborted_;"),
    "a new communicator is not remembered":
        ("      connected_ = true;\n", ""),
    "NCCL's error is ignored":
        ("if (asked == ncclSuccess &&\n"
         "          (error == ncclSuccess || error == ncclInProgress)) {",
         "if (asked == ncclSuccess) {"),
    "a lost GPU is reported as another rank's end":
        ("if (!gpu.ok()) {", "if (false) {"),
    "a regular end does not shut the group down":
        ("[&] { group_->shutdown(); }", "[] {}"),
    "an abort aborts nothing":
        ("[&] { group_->abort(); }", "[] {}"),
    "an abort leaves no error behind":
        ("      aborted_ = CausedByPeer(absl::UnavailableError(why));\n", ""),
    "a later reason replaces the first":
        ("      if (!aborted_.ok()) return;\n      aborted_", "      aborted_"),
    "host tensors are summed by NCCL":
        ("    if (tensor.is_cpu()) return host_->SumAll(tensor);\n", ""),
    "host tensors are summed to one rank by NCCL":
        ("    if (tensor.is_cpu()) return host_->SumTo(tensor, root);\n", ""),
    "host tensors are broadcast by NCCL":
        ("    if (tensor.is_cpu()) return host_->Broadcast(tensor, root);\n",
         ""),
    "host tensors are exchanged by NCCL":
        ("    if (send.is_cpu()) {\n", "    if (false) {\n"),
    "the reason of a failed operation is not queried":
        (ASKED + "    return Failed(", "    return Failed("),
    "an abort frees what another thread queries":
        ("    const MutexLock lock(mutex_);\n"
         "    if (!aborted_.ok() || !connected_)",
         "    if (!aborted_.ok() || !connected_)"),
}

# Name -> why no test can detect the removal.
SURVIVORS = {
    "the reason of a failed operation is not queried":
        "the abort would have to come while the operation is issued",
    "an abort frees what another thread queries":
        "the fakes see no races of host threads; `./dev lint` does "
        "(-Wthread-safety)",
}


def mutated(text, name):
    old, new = DEFECTS[name]
    if text.count(old) != 1:
        sys.exit(f"error: {SOURCE} must have once, and has "
                 f"{text.count(old)} times, what '{name}' removes:\n{old}")
    return text.replace(old, new)


class Build:
    def __init__(self, build):
        self.build = build
        with open(os.path.join(build, "compile_commands.json"),
                  encoding="utf-8") as file:
            self.command = next(e for e in json.load(file)
                                if e["file"].endswith(SOURCE))
        listed = subprocess.run(
            ["ninja", "-C", build, "-t", "commands", MODULE],
            capture_output=True, text=True, check=True).stdout
        self.link = next(
            line for line in reversed(listed.splitlines())
            if f"-o {MODULE}" in line).removeprefix(": && ").removesuffix(
                " && :")

    def module(self, text, folder):
        """Builds the module in `folder`, from the source `text`."""
        copy = os.path.join(folder, os.path.basename(SOURCE))
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text)
        words = shlex.split(self.command["command"])
        former = words[words.index("-o") + 1]
        out = os.path.join(folder, "mutant.o")
        words[words.index("-o") + 1] = out
        words[words.index("-c") + 1] = copy
        words = [w for w in words if w not in ("-Werror", "-O2")] + ["-w"]
        self.run(words, self.command["directory"])
        link = shlex.split(self.link)
        link[link.index(MODULE)] = os.path.join(folder,
                                                os.path.basename(MODULE))
        link[link.index(former)] = out
        self.run(link, self.build)

    def run(self, words, folder):
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(words)}:\n{done.stderr}")

    def found(self, text):
        with tempfile.TemporaryDirectory() as folder:
            self.module(text, folder)
            try:
                return subprocess.run(
                    [os.path.join(self.build, "bin/nccl_ranks_test"),
                     "--gtest_fail_fast"],
                    env={**os.environ, "LD_LIBRARY_PATH": folder},
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL, timeout=150,
                    check=False).returncode != 0
            except subprocess.TimeoutExpired:
                return True


def main():
    build = Build(os.path.abspath(sys.argv[1]))
    with open(os.path.join(ROOT, SOURCE), encoding="utf-8") as file:
        text = file.read()
    # The unchanged module must pass, so that failures come from the removal.
    if build.found(text):
        sys.exit("error: nccl_ranks_test fails with nothing removed")
    wanted = sys.argv[2:] or list(DEFECTS)
    wrong, survived = [], 0
    for name in wanted:
        found = build.found(mutated(text, name))
        print(f"{'found' if found else 'survives'}: {name}", flush=True)
        survived += not found
        if not found and name not in SURVIVORS:
            wrong.append(f"not found: {name}")
        if found and name in SURVIVORS:
            wrong.append(f"found, but listed in SURVIVORS: {name}")
    print(f"{len(wanted)} removals, {len(wanted) - survived} found, {survived} "
          f"survive")
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
