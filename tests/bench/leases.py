#!/usr/bin/env python3
"""bench-leases: how long large leases take if pinning takes 250 ms per GiB.

    leases.py --bin DIR --json FILE

Eight ranks lease 64 GiB together on the strict fake driver (tests/fake_cuda),
in sparse memory. The benchmark runs client_big_leases_test, which checks that
nothing times out and that memory is not made twice, and reads its output. It
does not measure a GPU, because the fake simulates pinning by a sleep.
"""

import os
import re
import subprocess
import sys

import figures

PIN_MS_PER_GIB = 250
PAUSE_S = 10  # client_big_leases_test waits this long between runs
LEASES = {  # name in the test's output -> limit in ms
    "64 GiB, the first time": 64 * PIN_MS_PER_GIB * 1.1,
    "a neighbour's, beside": 350,
    "1 GiB, made ahead": 20,
    "64 GiB, after the run's end": 1000,
    "64 GiB, after kill -9": 1000,
}
LINE = re.compile(r"^(?P<what>.+): (?P<ms>\d+) ms$", re.M)


def name_of(what):
    return f"on the fakes, a lease of {what}"


def entries(printed):
    return [{"name": name_of(match["what"]), "value": float(match["ms"]),
             "unit": "ms", "target": LEASES[match["what"]], "better": "lower",
             "detail": f"the slowest rank; {PIN_MS_PER_GIB} ms a GiB to pin"}
            for match in LINE.finditer(printed) if match["what"] in LEASES]


def main():
    arguments = figures.arguments(__doc__)
    test = os.path.join(os.path.abspath(arguments.bin),
                        "client_big_leases_test")
    if not os.path.exists(test):
        sys.exit(f"error: there is no {test}: build it first")
    env = {**os.environ, "SLUICE_TEST_PIN_MS": str(PIN_MS_PER_GIB),
           "SLUICE_TEST_PAUSE_S": str(PAUSE_S)}
    ran = subprocess.run([test], env=env, text=True, check=False,
                         stdout=subprocess.PIPE)
    print(ran.stdout, end="", flush=True)
    if ran.returncode != 0:
        sys.exit(f"error: {test} ended with status {ran.returncode}")
    figures.write(entries(ran.stdout), map(name_of, LEASES), arguments.json)


if __name__ == "__main__":
    main()
