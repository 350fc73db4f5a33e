#!/usr/bin/env python3
"""./dev fuzz: run.py --bin DIR [TARGET…] [--seconds N] [--keep]

Each target reads its kept corpus, then inputs that libFuzzer makes from it for
N seconds, and prints one line that says how many. Inputs that fail are written
to out/fuzz/TARGET; the target's program reads them again if given their path.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "corpus")
LIMITS = ["-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"]


def targets():
    return sorted(os.listdir(CORPUS))


class Parser(argparse.ArgumentParser):

    def error(self, message):
        self.exit(2, f"error: fuzz: {message}\n")


def options(words):
    parser = Parser(prog="./dev fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET",
                        help="one of " + " ".join(targets()))
    parser.add_argument("--seconds", type=int, default=60,
                        help="time for each target; 0: only the corpus")
    parser.add_argument("--keep", action="store_true",
                        help="add to the corpus what reached something new, "
                        "and drop from it what reaches nothing of its own")
    # For ./dev, which builds the programs of the targets that --only-parse
    # prints.
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--only-parse", action="store_true",
                        help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    for name in given.targets:
        if name not in targets():
            parser.error(f"no target '{name}'; there are: "
                         + " ".join(targets()))
    if given.seconds < 0:
        parser.error(f"--seconds {given.seconds}: it must be 0 or more")
    return given


class Fuzzer:
    """The program and the folders of one target."""

    def __init__(self, bin_dir, name):
        self.name = name
        self.program = os.path.join(bin_dir, "fuzz_" + name)
        self.kept = os.path.join(CORPUS, name)
        self.found = os.path.join("out", "fuzz", name)
        self.made = os.path.join(self.found, "made")
        os.makedirs(self.made, exist_ok=True)

    def call(self, *words):
        """Runs the target and returns its output; ends this program if the
        target found a failure."""
        run = subprocess.run(
            [self.program, *LIMITS, f"-artifact_prefix={self.found}/", *words],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace")
        if run.returncode == 0:
            return run.stderr
        sys.stderr.write("\n".join(run.stderr.splitlines()[-60:]) + "\n")
        sys.exit(f"error: fuzz: {self.name} found a failure (status "
                 f"{run.returncode}); the input is in {self.found}")

    def run(self, seconds):
        # Reads each input of the corpus and makes no new ones.
        inputs = [os.path.join(self.kept, one)
                  for one in sorted(os.listdir(self.kept))]
        self.call(*inputs)
        said = f"fuzz: {self.name}: {len(inputs)} kept inputs"
        if seconds > 0:
            log = self.call(f"-max_total_time={seconds}",
                            "-print_final_stats=1", self.made, self.kept)
            said += ", " + summary(log)
        print(said, flush=True)

    def keep(self):
        """Reduces the kept and the new inputs to the fewest that reach the same
        edges, and keeps these."""
        fresh = os.path.join(self.found, "merged")
        os.makedirs(fresh)
        self.call("-merge=1", fresh, self.kept, self.made)
        for folder in (self.kept, self.made):
            for one in os.listdir(folder):
                os.unlink(os.path.join(folder, one))
        for one in os.listdir(fresh):
            os.replace(os.path.join(fresh, one), os.path.join(self.kept, one))
        os.rmdir(fresh)


def summary(log):
    """Returns "12345 runs, 345 edges reached" from libFuzzer's log."""
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", log)
    edges = re.findall(r"cov: (\d+)", log)
    if runs is None or not edges:
        sys.exit("error: fuzz: libFuzzer printed no statistics:\n" + log)
    return f"{runs[1]} runs, {edges[-1]} edges reached"


def main():
    given = options(sys.argv[1:])
    names = given.targets or targets()
    if given.only_parse:
        print("\n".join(names))
        return

    def fuzz(name):
        fuzzer = Fuzzer(given.bin, name)
        fuzzer.run(given.seconds)
        if given.keep:
            fuzzer.keep()

    # Each fuzzer runs on one thread.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            list(pool.map(fuzz, names))
        except SystemExit:
            pool.shutdown(cancel_futures=True)
            raise


if __name__ == "__main__":
    main()
