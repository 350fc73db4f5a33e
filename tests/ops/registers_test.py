#!/usr/bin/env python3
"""registers_test.py NVCC FLAGS SOURCES [--record]: checks what `ptxas -v`
reports for Sluice's device code, compiled with the product's flags for sm_80,
sm_90 and sm_100.

FLAGS and SOURCES are separated by `;`. No kernel may spill or need a stack
frame, and each kernel's number of registers must be that in registers.txt.
--record rewrites that file (`ctest -V -R kernel_registers` shows the command
to add it to).
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

NVCC = sys.argv[1]
FLAGS, SOURCES = (each.split(";") for each in sys.argv[2:4])
RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "registers.txt")
# Maps machine code to the PTX that it is compiled from. A driver makes sm_100's
# code from the fatbin's PTX.
ARCHITECTURES = {"sm_80": "compute_80", "sm_90": "compute_90",
                 "sm_100": "compute_90"}
KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>\w+)'\n"
    r".*Function properties for .*\n"
    r"\s*(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores,"
    r" (?P<loads>\d+) bytes spill loads\n"
    r".*Used (?P<registers>\d+) registers")


def ptxas_version():
    said = subprocess.run([NVCC, "--version"], capture_output=True, text=True,
                          check=True).stdout
    return re.search(r"\bV(\d+\.\d+\.\d+)", said)[1]


def compiled(*flags):
    """Returns ptxas's report of each kernel: {(name, arch): match of KERNEL}.
    """
    told = {}
    for source in SOURCES:
        command = [NVCC, *FLAGS, "-fatbin", "-Xptxas", "-v", *flags]
        for machine, virtual in ARCHITECTURES.items():
            command += ["-gencode", f"arch={virtual},code={machine}"]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                command + ["-o", folder + "/code.fatbin", source],
                capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        for kernel in KERNEL.finditer(done.stderr):
            told[kernel["name"], kernel["arch"]] = kernel
        entries = done.stderr.count("Compiling entry function")
        if entries == 0 or entries % len(ARCHITECTURES) != 0 or entries != len(
                [*KERNEL.finditer(done.stderr)]):
            raise RuntimeError(f"{source}: not what ptxas is known to say:\n"
                               + done.stderr)
    return told


def spills(told):
    """Returns a line for each kernel that spills or has a stack frame."""
    return [f"{name} for {arch}: stack frame {kernel['stack']}, spill stores "
            f"{kernel['stores']}, spill loads {kernel['loads']} bytes"
            for (name, arch), kernel in told.items()
            if any(int(kernel[kind]) for kind in ("stack", "stores", "loads"))]


def as_recorded(told):
    lines = [f"{name} {arch} {kernel['registers']}"
             for (name, arch), kernel in sorted(told.items())]
    return "\n".join([f"ptxas {ptxas_version()}", *lines]) + "\n"


class Registers(unittest.TestCase):
    maxDiff = None

    def test_no_kernel_spills_and_registers_are_as_recorded(self):
        told = compiled()
        self.assertEqual(spills(told), [])
        with open(RECORD) as file:
            recorded = file.read()
        if recorded.split("\n")[0] != f"ptxas {ptxas_version()}":
            self.skipTest(f"nothing spills; this is ptxas {ptxas_version()}, "
                          f"and registers.txt is of another")
        self.assertEqual(as_recorded(told), recorded, "if it is meant to be "
                         "so: registers_test.py … --record")

    def test_too_few_registers_are_seen_to_spill(self):
        spilling = spills(compiled("--maxrregcount=24"))
        self.assertEqual(len(ARCHITECTURES), sum(
            "sluice_merge_fp32" in line for line in spilling))


if __name__ == "__main__":
    if sys.argv[4:] == ["--record"]:
        with open(RECORD, "w") as file:
            file.write(as_recorded(compiled()))
    else:
        unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
