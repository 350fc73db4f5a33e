"""The demo's output while it runs; plain lines if stdout is no tty."""

import os
import sys
import time

MIB = 1 << 20


def tokens(count):
    return f"{count:,}" if count else "none"


def mib(count):
    return f"{count / MIB:,.1f} MiB"


class Screen:

    def __init__(self, out=sys.stdout):
        self._out = out
        self._live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._color = self._live and "NO_COLOR" not in os.environ
        self._started = time.monotonic()

    def seconds(self):
        return time.monotonic() - self._started

    def paint(self, text, code):
        return f"\033[{code}m{text}\033[0m" if self._color else text

    def bold(self, text):
        return self.paint(text, "1")

    def dim(self, text):
        return self.paint(text, "2")

    def line(self, text=""):
        print(("\r\033[K" if self._live else "") + text, file=self._out,
              flush=True)

    def head(self, text):
        self.line()
        clock = self.dim(f"{self.seconds():5.0f} s")
        self.line(f"{clock}  {self.bold(text)}")

    def live(self, text):
        """Prints a line that the next one replaces; nothing without a tty."""
        if self._live:
            print("\r\033[K" + text, end="", file=self._out, flush=True)

    def bar(self, share, width=24):
        if not self._live:
            return ""
        full = round(share * width)
        return self.paint("━" * full, "36") + self.dim("━" * (width - full))

    def table(self, header, rows):
        widths = [max(len(str(row[i])) for row in [header] + rows)
                  for i in range(len(header))]

        def show(row):
            cells = [str(row[0]).ljust(widths[0])]
            cells += [str(c).rjust(w) for c, w in zip(row[1:], widths[1:])]
            return "  ".join(cells)

        self.line("  " + self.dim(show(header)))
        for row in rows:
            self.line("  " + show(row))
