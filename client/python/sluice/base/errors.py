"""What this package raises: `Error` from the library, `Unsupported` of its own.

Both are one line: what, which value, which limit, what to do.
"""

from __future__ import annotations

import enum
import re


class Status(enum.IntEnum):
    """The numbers of `sluice_status` (sluice.h), without OK."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Error(RuntimeError):
    """The daemon, the library or this package could not do what was asked.

    Attributes:
        status: which kind of failure; `Status.RESOURCE_EXHAUSTED` is a lease
            over the budget or the pool, `Status.UNAVAILABLE` a daemon that is
            gone.
        line: the library's or the daemon's own line.
    """

    def __init__(self, status: int, line: str) -> None:
        # Both are the exception's args, so that it can be pickled.
        super().__init__(status, line)
        try:
            self.status = Status(status)
        except ValueError:  # of a newer library
            self.status = Status.UNKNOWN
        self.line = line

    def __str__(self) -> str:
        return f"{self.line} ({self.status.name})"


_TOO_OLD = re.compile(r"(\S+): version `(([A-Z]+)_[\d.]+)' not found")


def loader_fault(line: str) -> str | None:
    """Reads a line in which ld.so misses a version of a system's library: which
    library, what it has, what is needed, what to do. None for other lines."""
    found = _TOO_OLD.search(line)
    if found is None:
        return None
    path, needed, name = found.groups()
    try:
        with open(path, "rb") as file:
            has = re.findall(rb"\0%b_([\d.]+)(?=\0)" % name.encode(),
                             file.read())
        newest = max(has, key=lambda each: [*map(int, each.split(b"."))])
        last = f"ends at {name}_{newest.decode()}, and {needed} is needed"
    except (OSError, ValueError):
        last = f"lacks {needed}"
    remedy = ("use a system with that glibc or a newer one, or the wheel, which "
              "needs glibc 2.28" if name == "GLIBC" else
              "install the libstdc++ of GCC 12 or newer (the system's "
              "libstdc++6, or conda install -c conda-forge 'libstdcxx-ng>=12')"
              " and, if an older one is found before it, name its folder first"
              " in LD_LIBRARY_PATH")
    return f"{path} is too old: it {last}: {remedy}"


class Invalid(Error, ValueError):
    """A call was given what it does not take: `Status.INVALID_ARGUMENT`."""


class PeerFailed(Error):
    """Another rank failed, so this one cannot go on."""


_NOTHING = "do not stream this model"


class Unsupported(RuntimeError):
    """A model or a call that cannot be exact is refused, by name.

    Attributes:
        module: the module or argument it is about, as the user knows it
            ("model.layers.3.self_attn"), or by its class.
        feature: what about it cannot be exact.
        remedy: what to do instead.
        layer: the index of the layer that was tried, None outside of layers.
    """

    layer: int | None = None
    vagueness = 0  # the first refusal that names a cause is the reason

    def __init__(self, module: object, feature: str,
                 remedy: str = _NOTHING) -> None:
        self.module = module if isinstance(module, str) else (
            type(module).__name__)
        super().__init__(self.module, feature, remedy)
        self.feature = feature
        self.remedy = remedy

    @property
    def has_remedy(self) -> bool:
        """Whether the user can change something but not to stream."""
        return _NOTHING not in self.remedy

    def __str__(self) -> str:
        return f"{self.module}: {self.feature}: {self.remedy}"


# Tracebacks name them as users import them.
Error.__module__ = Invalid.__module__ = Unsupported.__module__ = "sluice"


class NoAttention(Unsupported):
    """A layer in which attention was not met: perhaps it is elsewhere."""

    vagueness = 2


class Inexact(Unsupported):
    """A layer that computed something else by chunks, whatever the cause."""

    vagueness = 1


class UnknownRows(Unsupported):
    """An argument of a layer that may have rows.

    Attributes:
        argument: its name.
        dims: the dimensions that are as long as the sequence.
    """

    argument = ""
    dims: tuple[int, ...] = ()
