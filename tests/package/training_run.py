"""A training run beside the booted Debian: two ranks on the Debian's daemon.
"""

import json
import os
import signal
import statistics
import subprocess

from rootfs import wait_until

TRAIN = ("--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --chunk 64 "
         "--ranks 2 --seq-len 777 --steps 100000 --seed 3 --hbm 24MiB").split()


def steps_in(log):
    """Returns the complete lines of a run's log that have a loss."""
    if not os.path.exists(log):
        return []
    with open(log, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return [line for line in lines if "loss" in line]


def comes_first(words, **options):
    """Starts a training run with the highest CPU priority. On a machine with
    two cores the run's two ranks keep both cores busy, and an upgrade would
    slow the ranks down; a node has other cores for an upgrade. The kernel first
    shares the cores between sessions (sched(7), autogroup), so `nice` alone has
    effect only within the run's own session."""
    process = subprocess.Popen(["nice", "-n", "-20", *words],
                               start_new_session=True, **options)
    group = f"/proc/{process.pid}/autogroup"
    if os.path.exists(group):
        with open(group, "w", encoding="ascii") as file:
            file.write("-20")
    return process


class Run:
    """A sluice-train of two ranks, outside of the Debian but with its /run."""

    def __init__(self, build, folder, name):
        self.log = f"{folder}/{name}.jsonl"
        text = folder + "/text"
        with open(text, "w", encoding="ascii") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 2000)
        with open(f"{folder}/{name}.err", "w", encoding="utf-8") as err:
            self.process = comes_first(
                [build + "/bin/sluice-train", "train", *TRAIN, "--job", name,
                 "--data", text, "--log-jsonl", self.log],
                stdout=subprocess.DEVNULL, stderr=err)
        self.err = err.name

    def steps(self):
        return steps_in(self.log)

    def losses(self):
        return [step["loss"] for step in self.steps()]

    def measured_from(self):
        """Waits for the end of a step and returns the number of the next one.
        Earlier steps may be slow because calls of systemctl took CPU time."""
        self.goes_on(1)
        return len(self.steps())

    def longest_beyond_median(self, since):
        """Returns by how many ms the longest step from number `since` on
        exceeds the median."""
        seconds = [step["seconds"] for step in self.steps()]
        return 1000 * (max(seconds[since:]) - statistics.median(seconds))

    def goes_on(self, steps=3):
        """Waits until the run has ended `steps` more steps."""
        wanted = len(self.losses()) + steps

        def there():
            if self.process.poll() is not None:
                with open(self.err, encoding="utf-8") as file:
                    raise AssertionError("the run ended:\n" + file.read())
            return len(self.losses()) >= wanted
        wait_until(there, f"{steps} more steps of the run")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def is_as_undisturbed(build, folder, disturbed):
    """Ends the run and checks that its losses are bit by bit those of an
    undisturbed run."""
    disturbed.end()
    losses = disturbed.losses()
    calm = Run(build, folder, "undisturbed")
    calm.goes_on(len(losses))
    calm.end()
    assert calm.losses()[:len(losses)] == losses, "the losses differ"
    print(f"{len(losses)} steps, bit for bit those of an undisturbed run",
          flush=True)
