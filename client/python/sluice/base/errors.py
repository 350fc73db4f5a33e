"""Exceptions of this package. Their text is one line: what happened, the
value, the limit, what to do."""
from __future__ import annotations

import enum
import re


class Status(enum.IntEnum):
    """Codes of `sluice_status` (sluice.h), without OK."""

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
    """A request that the daemon, the library or this package could not serve.

    Attributes:
        status: kind of failure; `Status.RESOURCE_EXHAUSTED`: a lease exceeds
            the budget or the pool; `Status.UNAVAILABLE`: the daemon is gone.
        line: the message without the status.
    """

    def __init__(self, status: int, line: str) -> None:
        # Both are passed as the exception's args, so that it can be pickled.
        super().__init__(status, line)
        try:
            self.status = Status(status)
        except ValueError:  # a code of a newer library
            self.status = Status.UNKNOWN
        self.line = line

    def __str__(self) -> str:
        return f"{self.line} ({self.status.name})"


_TOO_OLD = re.compile(r"(\S+): version `(([A-Z]+)_[\d.]+)' not found")


def loader_fault(line: str) -> str | None:
    """Explains a line of ld.so about a system library that is too old, with
    the remedy. Returns None for other lines."""
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
    remedy = ("use a system with that glibc or a newer one, or the wheel, "
              "which needs glibc 2.28" if name == "GLIBC" else
              "install the libstdc++ of GCC 12 or newer (the system's "
              "libstdc++6, or conda install -c conda-forge 'libstdcxx-ng>=12')"
              " and, if an older one is found before it, name its folder first"
              " in LD_LIBRARY_PATH")
    return f"{path} is too old: it {last}: {remedy}"


class Invalid(Error, ValueError):
    """A call got an invalid argument: `Status.INVALID_ARGUMENT`."""


class PeerFailed(Error):
    """Another rank failed, so this rank cannot continue."""


_NOTHING = "do not stream this model"


class Unsupported(RuntimeError):
    """A model or a call is refused because streaming it would not be exact.

    Attributes:
        module: name of the module ("model.layers.3.self_attn") or argument, or
            the module's class.
        feature: the property that cannot be streamed exactly.
        remedy: what to do instead.
        layer: index of the layer that was tried; None outside of layers.
    """

    layer: int | None = None
    vagueness = 0  # the least vague of several refusals is reported

    def __init__(self, module: object, feature: str,
                 remedy: str = _NOTHING) -> None:
        self.module = module if isinstance(module, str) else (
            type(module).__name__)
        super().__init__(self.module, feature, remedy)
        self.feature = feature
        self.remedy = remedy

    @property
    def has_remedy(self) -> bool:
        """Whether there is a remedy other than not streaming the model."""
        return _NOTHING not in self.remedy

    def __str__(self) -> str:
        return f"{self.module}: {self.feature}: {self.remedy}"


# Tracebacks show the names by which users import them.
Error.__module__ = Invalid.__module__ = Unsupported.__module__ = "sluice"


class NoAttention(Unsupported):
    """A layer is refused because it never called attention."""

    vagueness = 2


class Inexact(Unsupported):
    """A layer is refused: its result by chunks differs for no known reason."""

    vagueness = 1


class UnknownRows(Unsupported):
    """A layer's argument is refused: it is unknown and may have a sequence
    dimension. `dims`: its dimensions that are as long as the sequence."""

    argument = ""
    dims: tuple[int, ...] = ()
