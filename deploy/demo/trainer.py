"""Runs sluice-train and reads what it prints."""

import json
import os
import subprocess
import threading


class RunFailed(Exception):
    """Raised if sluice-train fails, but not for lack of memory."""


def flags_of(settings):
    """Returns the flags that give every run of the demo the same model."""
    names = ["arch", "layers", "hidden", "heads", "kv-heads", "ffn", "dtype",
             "lr", "warmup", "clip", "beta1", "beta2", "seed", "ranks",
             "chunk"]
    flags = []
    for name in names:
        flags += [f"--{name}", str(settings[name])]
    return flags


class Trainer:
    """Runs sluice-train with the demo's settings. `data`: path of the training
    data; `socket`: the daemon's socket."""

    FITS, DOES_NOT_FIT = 0, 3

    def __init__(self, processes, binary, settings, socket, data, folder):
        self._processes = processes
        self._command = [binary, "train", "--json", "--socket", socket,
                         "--data", data] + flags_of(settings)
        if os.path.isdir(data):
            self._command += ["--data-suffix", ".py"]
        self._folder = folder
        self._runs = 0

    def probe(self, method, length, timeout_s=150):
        """Returns the object of --json, which says whether the length fits."""
        return self._run(method, length, ["--probe"], timeout_s)

    def train(self, method, length, steps, on_step=None, trace=None,
              timeout_s=900):
        """Calls on_step(line) after each step. Returns (object of --json, lines
        of --log-jsonl)."""
        lines = []
        log = os.path.join(self._folder, f"steps-{self._runs}.jsonl")
        more = ["--steps", str(steps), "--log-jsonl", log]
        if trace:
            more += ["--trace", trace]
        done = threading.Event()

        def follow(line):
            lines.append(line)
            if on_step:
                on_step(line)

        follower = threading.Thread(target=follow_lines,
                                    args=(log, follow, done), daemon=True)
        follower.start()
        try:
            result = self._run(method, length, more, timeout_s)
        finally:
            done.set()
            follower.join()
        return result, lines

    def _run(self, method, length, more, timeout_s):
        self._runs += 1
        command = self._command + ["--job", f"demo-{self._runs}-{method}",
                                   "--method", method, "--seq-len",
                                   str(length)] + more
        errors = os.path.join(self._folder, "train.err")
        with open(errors, "w", encoding="utf-8") as err:
            process = self._processes.start(command, stdout=subprocess.PIPE,
                                            stderr=err, text=True)
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                raise RunFailed(f"{method} at {length} tokens took more than "
                                f"{timeout_s} s") from None
            finally:
                self._processes.stop(process)
        if process.returncode not in (self.FITS, self.DOES_NOT_FIT):
            raise RunFailed(
                f"sluice-train ended with status {process.returncode}: "
                f"{last_line(errors)}\n  command: {' '.join(command)}")
        return read_object(output, process.returncode == self.FITS)


def read_object(output, fits):
    """Returns the last JSON object of `output`; its "fits" must be `fits`."""
    for line in reversed(output.strip().splitlines()):
        if line.startswith("{"):
            result = json.loads(line)
            if result["fits"] != fits:
                raise RunFailed("sluice-train's exit status and its \"fits\" "
                                "do not agree")
            return result
    raise RunFailed("sluice-train printed no object")


def last_line(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file.read().splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def follow_lines(path, on_object, done):
    """Calls on_object for each JSON line of a growing file, until `done`."""
    position, rest = 0, ""
    while True:
        last = done.is_set()
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                file.seek(position)
                rest += file.read()
                position = file.tell()
        *lines, rest = rest.split("\n")
        for line in lines:
            if line.strip():
                on_object(json.loads(line))
        if last:
            return
        done.wait(0.1)
