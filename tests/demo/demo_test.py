#!/usr/bin/env python3
"""Runs the whole demo with fewer steps: demo_test.py BIN_DIR DATA.

Exits with 77 (skipped) if Prometheus is not installed."""

import json
import os
import subprocess
import sys
import tempfile

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                    "../../deploy/demo/demo.py")
DEPENDENCIES = os.environ.get("SLUICE_DEPS") or os.path.expanduser(
    "~/.cache/sluice")
PROMETHEUS = os.path.join(DEPENDENCIES, "prometheus/usr/bin/prometheus")

KEYS = {"hbm_bytes_per_gpu", "gpus", "host_budget_bytes", "methods", "parity",
        "sluice_over_recompute", "sluice_over_alst", "desk",
        "prometheus_scraped", "seconds"}
METHOD_KEYS = {"max_seq_len", "peak_hbm_bytes", "host_bytes",
               "tokens_per_second", "limited_by"}


def check(report):
    """Yields each error in a report.json."""
    if missing := KEYS - set(report):
        yield f"report.json lacks {sorted(missing)}"
        return
    for name in ("keep-all", "recompute", "alst", "sluice"):
        if missing := METHOD_KEYS - set(report["methods"].get(name, {})):
            yield f"report.json's {name} lacks {sorted(missing)}"
    if report["sluice_over_recompute"] < 3:
        yield (f"Sluice reaches {report['sluice_over_recompute']:.2f} times "
               "recomputation's length, must be 3")
    if report["sluice_over_alst"] < 1.4:
        yield (f"Sluice reaches {report['sluice_over_alst']:.2f} times alst's "
               "length, must be 1.4")
    difference = report["parity"]["max_abs_loss_diff"]
    if not difference <= 1e-3:
        yield f"losses are {difference} apart, at most 1e-3"
    if report["prometheus_scraped"] is not True:
        yield "Prometheus scraped nothing"


def main():
    binaries, data = sys.argv[1:]
    if not os.path.exists(PROMETHEUS):
        print(f"skipped: there is no {PROMETHEUS}; ./dev setup installs it")
        return 77
    with tempfile.TemporaryDirectory() as out:
        subprocess.run(
            [sys.executable, DEMO, "--bin", binaries, "--prometheus",
             PROMETHEUS, "--data", data, "--out", out, "--quick"], check=True)
        with open(os.path.join(out, "report.json"), encoding="utf-8") as file:
            wrong = list(check(json.load(file)))
        if not os.path.getsize(os.path.join(out, "report.html")):
            wrong.append("report.html is empty")
    for line in wrong:
        print(f"error: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
