"""A sluiced with simulated GPUs, for tests of the programs that connect to it.
"""

import subprocess

# Nothing listens on TCP, because two tests at once would want the same port.
CONFIG = '[device]\ndriver = "sim"\n[http]\nlisten = ""\n'


def write_config(folder, text=CONFIG):
    """Writes a configuration with that text to `folder`; returns its path."""
    path = folder + "/sluiced.toml"
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


def start(test, command, end=subprocess.Popen.kill, **options):
    """Starts `command`, a sluiced or its keeper, waits until it serves, and
    returns its process. `end` ends the process after `test`."""
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, **options)
    test.addCleanup(daemon.stdout.close)
    test.addCleanup(daemon.wait)
    test.addCleanup(end, daemon)
    test.assertIn("ready", daemon.stdout.readline())
    return daemon
