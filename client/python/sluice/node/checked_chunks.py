"""Selects the replays that are compared with their first forwards.

[Note: checks] Attributes are restored and the contents of parameters and
buffers are checked ([Note: setting] in setting), but a forward may read values
from elsewhere: a class attribute, a global, a config, a tensor that is no
buffer. With check="first" all chunks are compared in each step until a backward
has passed; after that each step compares one chunk of one layer of each kind,
in turn. Each comparison waits for the device once.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

Check = Literal["first", "always", "off"]


@dataclass(frozen=True)
class StepChecks:
    """The checks of one step.

    Attributes:
        every: whether all chunks are compared.
        sampled: if not `every`, the modules of which one chunk is compared, each
            with that chunk's number (modulo the module's number of chunks).
        passed: called when a backward has found its replays equal.
        in_parts: whether compared chunks also run in two parts.
    """

    every: bool
    sampled: Mapping[nn.Module, int] = field(default_factory=dict)
    passed: Callable[[], None] = lambda: None
    in_parts: bool = False

    def include(self, module: Any, chunk: int, chunks: int) -> bool:
        number = self.sampled.get(module)
        return self.every or (number is not None and number % chunks == chunk)


class Checks:
    """Chooses the checks of each step of one stream, in the stream's turn."""

    def __init__(self, how: Check):
        self._how = how
        self.has_passed = False  # a backward, since the layers were probed
        self.kinds: Sequence[Sequence[nn.Module]] = ()  # layers by kind
        self._steps = 0

    def begin(self, of_layers: bool, samples: bool) -> StepChecks:
        """Returns the checks of a step's layers if `of_layers`, else of its
        head. `samples`: whether steps after the first pass compare a sample."""
        if self._how != "first" or not self.has_passed:
            every = self._how != "off"
            return StepChecks(every, passed=self._pass, in_parts=True) if (
                of_layers) else StepChecks(every)
        if not of_layers or not samples:
            return StepChecks(False)
        self._steps += 1
        # Each layer of a kind has its turn before the next chunk is compared.
        return StepChecks(False, {
            kind[self._steps % len(kind)]: self._steps // len(kind)
            for kind in self.kinds}, in_parts=True)

    def _pass(self) -> None:
        self.has_passed = True
