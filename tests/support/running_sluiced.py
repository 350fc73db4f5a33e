"""A sluiced with simulated GPUs, for tests that talk to its programs."""

import subprocess

# Nothing listens on TCP: two tests at once would want one port.
CONFIG = '[device]\ndriver = "sim"\n[http]\nlisten = ""\n'


def write_config(folder, text=CONFIG):
    """The path of a configuration with that text in `folder`."""
    path = folder + "/sluiced.toml"
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


def start(test, command, end=subprocess.Popen.kill, **options):
    """The process of `command`, a sluiced or its keeper, once it serves. `end`
    ends it when `test` is over."""
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, **options)
    test.addCleanup(daemon.stdout.close)
    test.addCleanup(daemon.wait)
    test.addCleanup(end, daemon)
    test.assertIn("ready", daemon.stdout.readline())
    return daemon
