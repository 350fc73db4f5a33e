#!/usr/bin/env python3
"""The demo: train past the memory limit, end to end. See README.md.

Starts a daemon with simulated GPUs and a Prometheus that scrapes it. Finds the
longest sequence of each method, trains all four methods at a common length and
each at its longest, and gets the cost model's estimates for real GPUs. Writes
report.json and report.html.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time

import desk
import report
from node import Daemon, Prometheus
from processes import Processes
from screen import Screen, mib, tokens
from search import longest
from trainer import RunFailed, Trainer

METHODS = ["keep-all", "recompute", "alst", "sluice"]

SETTINGS = {
    # The node.
    "gpus": 2, "hbm_mib": 16, "extent_mib": 4, "host_mib": 128,
    "link_bytes_per_s": 2e9,
    # The model and its training: a narrow Llama on bytes. It has many layers,
    # so that what a method keeps per layer outweighs its working memory.
    "arch": "llama", "layers": 16, "hidden": 64, "heads": 2, "kv-heads": 2,
    "ffn": 172, "dtype": "fp32", "ranks": 2, "chunk": 256, "seed": 1,
    "lr": 1e-3, "warmup": 10, "clip": 1, "beta1": 0.9, "beta2": 0.95,
    # How many steps are trained at the common length, and at the longest.
    "parity_steps": 20,
    # Sluice's step at its longest length takes most of the demo's time.
    "longest_steps": {"keep-all": 3, "recompute": 3, "alst": 3, "sluice": 1},
}

# The length at which each method's search starts, chosen to need few probes.
SEARCH_FROM = {"keep-all": 128, "recompute": 1024, "alst": 4096,
               "sluice": 8192}


class Demo:

    def __init__(self, arguments, screen, folder):
        self.settings = SETTINGS
        self.screen = screen
        self.folder = folder
        self.arguments = arguments
        self.processes = Processes()
        self.probes = {method: [] for method in METHODS}

    def run(self):
        self.start_node()
        lengths = {m: self.find_longest(m) for m in METHODS}
        parity = self.train_alike(lengths)
        best = self.train_longest(lengths)
        scraped = self.ask_prometheus()
        answers = self.ask_desk()
        return self.collect(lengths, parity, best, scraped, answers)

    def start_node(self):
        s = self.settings
        self.screen.line(self.screen.bold("Sluice") +
                         f": {s['gpus']} simulated GPUs of {s['hbm_mib']} MiB,"
                         f" {s['host_mib']} MiB of host memory, links of "
                         f"{s['link_bytes_per_s'] / 1e9:g} GB/s each way")
        self.screen.head("a node")
        binaries = self.arguments.bin
        self.daemon = Daemon(self.processes, os.path.join(binaries, "sluiced"),
                             s, self.folder)
        self.screen.line(f"  sluiced     pid {self.daemon.process.pid}, "
                         f"metrics on 127.0.0.1:{self.daemon.port}")
        self.prometheus = Prometheus(self.processes, self.arguments.prometheus,
                                     self.daemon.port, self.folder)
        self.screen.line(f"  prometheus  pid {self.prometheus.process.pid}, "
                         f"on 127.0.0.1:{self.prometheus.port}")
        self.trainer = Trainer(
            self.processes, os.path.join(binaries, "sluice-train"), s,
            self.daemon.socket, self.arguments.data, self.folder)
        self.started = time.time()

    def find_longest(self, method):
        if method == METHODS[0]:
            self.screen.head("the longest sequence of each method")
        shown = []
        label = f"  {method:<11} "

        def fits(length):
            self.screen.live(label + "  ".join(shown) + f"  {length:,} …")
            answer = self.trainer.probe(method, length)
            self.probes[method].append(answer)
            mark = (self.screen.paint("✓", "32") if answer["fits"]
                    else self.screen.paint("✗", "31"))
            shown.append(f"{length:,} {mark}")
            return answer["fits"]

        found, refused = longest(fits, SEARCH_FROM[method])
        why = next((p["limited_by"] for p in self.probes[method]
                    if p["seq_len"] == refused), "nothing that was tried")
        self.screen.line(label + "  ".join(shown))
        self.screen.line(" " * 14 + self.screen.bold(tokens(found)) +
                         self.screen.dim(f"  limited by {why}"))
        return found

    def train_alike(self, lengths):
        """Trains every method at the longest length that all can train."""
        length = min(lengths.values())
        if length == 0:
            raise RunFailed("a method fits no sequence at all")
        steps = self.settings["parity_steps"]
        self.screen.head(f"the same loss: {steps} steps at {length:,} tokens")
        runs = {m: self.train(m, length, steps) for m in METHODS}
        return {"seq_len": length, "steps": steps, "runs": runs}

    def train_longest(self, lengths):
        self.screen.head("at the longest length of each")
        trace = os.path.join(self.folder, "trace-sluice.json")
        return {m: self.train(m, lengths[m],
                              self.settings["longest_steps"][m],
                              trace=trace if m == "sluice" else None)
                for m in METHODS}

    def train(self, method, length, steps, trace=None):
        label = f"  {method:<11} "

        def on_step(line):
            share = line["step"] / steps if line["step"] <= steps else 1
            self.screen.live(f"{label}{self.screen.bar(share)} "
                             f"loss {line['loss']:.4f}  "
                             f"{line['tokens_per_second']:,.0f} tokens/s")

        self.screen.live(f"{label}{self.screen.bar(0)} {length:,} tokens …")
        result, lines = self.trainer.train(method, length, steps, on_step,
                                           trace)
        if not result["fits"]:
            raise RunFailed(f"{method} at {length} tokens fitted when probed "
                            f"but not when trained: {result['message']}")
        # One step has one loss: an arrow would look like a failure.
        loss = (f"{result['first_loss']:.4f} → {result['last_loss']:.4f}"
                if len(result["losses"]) > 1
                else f"{result['last_loss']:.4f} (one step)")
        self.screen.line(
            f"{label}{self.screen.bar(1)} {length:>8,} tokens  loss {loss}  "
            f"{result['tokens_per_second']:,.0f} tokens/s")
        return {"result": result, "steps": lines, "trace": trace}

    def ask_prometheus(self):
        """Returns Sluice's series, which proves that the scrape is real."""
        ours = '{__name__=~"sluice_.+"}'
        names = self.prometheus.query(f"count by (__name__) ({ours})")
        target = self.prometheus.query('up{job="sluice"}')
        up = bool(target) and target[0]["value"][1] == "1"
        series = self.prometheus.query_range(ours, self.started, time.time())
        self.screen.head("prometheus")
        self.screen.line(f"  {len(names)} metrics and {len(series)} series "
                         "named sluice_…, target " +
                         ("up" if up else self.screen.bold("DOWN")))
        return {"up": up, "metrics": sorted(n["metric"]["__name__"]
                                            for n in names),
                "series": series, "ok": up and len(names) > 0}

    def ask_desk(self):
        answers = desk.ask(self.arguments.bin)
        q = answers["question"]
        self.screen.head(f"the cost model on {q['model']}, {q['gpus']} x "
                         f"{q['hardware']} (estimated, not run)")
        rows = [(name, tokens(a["max_seq_len"]), mfu(a["mfu_at_1m"]),
                 gb(a["gpu_bytes"]), gb(a["host_bytes_per_node"]),
                 a["stopped_by"]) for name, a in answers["methods"].items()]
        self.screen.table(("method", "longest", "MFU at 1M", "of a GPU",
                           "host per node", "stopped by"), rows)
        for line in textwrap.wrap(answers["verdict"], 76):
            self.screen.line("  " + line)
        return answers

    def collect(self, lengths, parity, best, scraped, answers):
        s = self.settings
        mib_bytes = 1 << 20
        methods = {}
        for method in METHODS:
            result = best[method]["result"]
            refused = [p for p in self.probes[method] if not p["fits"]]
            nearest = min(refused, key=lambda p: p["seq_len"], default=None)
            methods[method] = {
                "max_seq_len": lengths[method],
                "peak_hbm_bytes": result["peak_hbm_bytes"],
                "host_bytes": result["host_bytes"],
                "tokens_per_second": result["tokens_per_second"],
                "seconds_per_step": result["seconds_per_step"],
                "limited_by": nearest["limited_by"] if nearest else "none",
                "refused_at": nearest["seq_len"] if nearest else None,
                "refusal": nearest["message"] if nearest else "",
            }
        columns = zip(*(parity["runs"][m]["result"]["losses"]
                        for m in METHODS))
        differences = [max(row) - min(row) for row in columns]
        if len(differences) != parity["steps"]:
            raise RunFailed(f"{len(differences)} losses for "
                            f"{parity['steps']} steps")
        def over(one, other):
            return lengths[one] / max(1, lengths[other])

        facts = {
            "hbm_bytes_per_gpu": s["hbm_mib"] * mib_bytes, "gpus": s["gpus"],
            "host_budget_bytes": s["host_mib"] * mib_bytes,
            "methods": methods,
            "parity": {"steps": parity["steps"], "seq_len": parity["seq_len"],
                       "first_step_loss_diff": differences[0],
                       "max_abs_loss_diff": max(differences)},
            "sluice_over_recompute": over("sluice", "recompute"),
            "sluice_over_alst": over("sluice", "alst"),
            "alst_over_recompute": over("alst", "recompute"),
            "desk": answers,
            "prometheus_scraped": scraped["ok"],
            "seconds": round(self.screen.seconds(), 1),
            "settings": s,
        }
        return facts, parity, best, scraped


def mfu(share):
    return "does not fit" if share is None else f"{100 * share:.1f} %"


def gb(count):
    return f"{count / 1e9:,.1f} GB"


def show(screen, facts):
    screen.head("result")
    screen.line("  each method has " +
                mib(facts["hbm_bytes_per_gpu"]) + " of HBM per GPU and " +
                mib(facts["host_budget_bytes"]) + " of host memory; they use")
    rows = [(name, tokens(m["max_seq_len"]), mib(m["peak_hbm_bytes"]),
             mib(m["host_bytes"]), f"{m['tokens_per_second']:,.0f}",
             m["limited_by"]) for name, m in facts["methods"].items()]
    screen.table(("method", "longest", "HBM per GPU", "host in all", "tokens/s",
                  "limited by"), rows)
    parity = facts["parity"]
    screen.line()
    for name, key, target in (
            ("Sluice / full recomputation", "sluice_over_recompute", 3),
            ("Sluice / alst", "sluice_over_alst", 1.4),
            ("alst / full recomputation", "alst_over_recompute", 2.3)):
        screen.line(f"  {name:<29}" + screen.bold(f"{facts[key]:.1f}x") +
                    f"  in the same memory (target: at least {target}x)")
    screen.line(f"  losses over {parity['steps']} steps       " +
                screen.bold(f"{parity['max_abs_loss_diff']:.1e}") +
                "  apart at most (target: at most 1e-3)")


class OneLine(argparse.ArgumentParser):
    """Parser that prints errors as one line, as Sluice's programs do."""

    def error(self, message):
        self.exit(2, f"error: {self.prog}: {message} (see {self.prog} "
                  "--help)\n")


def parse_arguments():
    parser = OneLine(prog="./dev demo", description=__doc__.splitlines()[0])
    # ./dev passes these options.
    for flag in ("--bin", "--prometheus", "--data", "--out"):
        parser.add_argument(flag, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--only-parse", action="store_true",
                        help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true",
                        help="5 steps instead of 20, to see it work")
    arguments = parser.parse_args()
    if arguments.only_parse:
        sys.exit(0)
    if arguments.quick:
        SETTINGS["parity_steps"] = 5
    for path in (arguments.prometheus, arguments.data,
                 os.path.join(arguments.bin, "sluiced"),
                 os.path.join(arguments.bin, "sluicectl"),
                 os.path.join(arguments.bin, "sluice-train")):
        if not os.path.exists(path):
            parser.exit(2, f"error: {path} is not there: run it as ./dev demo"
                        "\n")
    return arguments


def on_signal(number, frame):
    raise KeyboardInterrupt


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGHUP, on_signal)
    screen = Screen()
    # A short path, because a unix socket's path is limited to 107 characters.
    folder = tempfile.mkdtemp(prefix="sluice-demo-")
    demo = Demo(arguments, screen, folder)
    try:
        facts, parity, best, scraped = demo.run()
        os.makedirs(arguments.out, exist_ok=True)
        page = report.write(arguments.out, facts, parity, best, scraped)
    except KeyboardInterrupt:
        screen.line("demo: interrupted; everything it started is stopped")
        return 130
    except (RunFailed, desk.DeskFailed, RuntimeError, OSError, KeyError,
            ValueError) as error:
        screen.line()
        print(f"error: demo: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        demo.processes.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
    show(screen, facts)
    screen.line()
    screen.line(f"  {screen.seconds():.0f} s; the report: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
