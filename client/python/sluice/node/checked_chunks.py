"""Selects the replays that are compared with their first forwards, and checks
that a layer computes a row alike in chunks of different sizes.

[Note: checks] Attributes are restored and the contents of parameters and
buffers are checked ([Note: setting] in setting), but a forward may read values
from elsewhere: a class attribute, a global, a config, a tensor that is no
buffer. With check="first" all chunks are compared in each step until a backward
has found them equal; later steps compare one chunk of one layer of each kind,
in turn. Each comparison waits for the device once.

[Note: two parts] A layer may count the rows that it sees, or number them: it
may scale from row 8,192 on, or if there are more rows than some number, which
the probe's 70 rows do not show. So a chunk that is compared also runs in two
parts, which get attention's results from the replay. Their q, k, v and outputs
must be those of the whole chunk. Chunks are halved; the first chunk is cut at
the length of the last one. Rounding depends on the shape of a product, and may
send a row to another expert. So some rows may differ, but hardly many
consecutive ones: with 128 experts in bf16, 5 % of the rows change experts on a
GPU that adds up partial products in bf16. A threshold beyond the chunk's length
is not detected.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sluice.base.errors import Unsupported

Check = Literal["first", "always", "off"]

LIMIT = 1e-3  # relative difference of a row; 8 eps of its dtype if that is more
FEW, MANY = 0.05, 0.25  # share of rows that may differ: fp32, narrower types
RUN = 16  # so many consecutive rows that differ are refused


@dataclass(frozen=True)
class StepChecks:
    """The checks of one step."""

    every: bool  # whether all chunks are compared
    # If not `every`, the modules of which one chunk is compared, each with that
    # chunk's number (modulo the module's number of chunks).
    sampled: Mapping[nn.Module, int] = field(default_factory=dict)
    # Called when a backward has found its replays equal.
    passed: Callable[[], None] = lambda: None
    in_parts: bool = False  # whether compared chunks also run in two parts

    def include(self, module: Any, chunk: int, chunks: int) -> bool:
        number = self.sampled.get(module)
        return self.every or (number is not None and number % chunks == chunk)


class Checks:
    """Chooses the checks of steps. The caller holds the stream's lock."""

    def __init__(self, how: Check):
        self._how = how
        self.has_passed = False  # whether a backward passed since the probe
        self.kinds: Sequence[Sequence[nn.Module]] = ()  # layers by kind
        self._steps = 0

    def begin(self, of_layers: bool, samples: bool) -> StepChecks:
        """Returns the checks of a step's layers if `of_layers`, else of its
        head. `samples`: whether to compare a sample once a step has passed."""
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


class TwoParts:
    """Compares a chunk run whole with the chunk run in parts cut at `first`."""

    def __init__(self, rows: int, first: int):
        self._rows, self._first = rows, first
        self._few = FEW
        # By call of attention: q, k, v and o, [B, heads, rows, width].
        self._calls: list[tuple[Tensor, ...]] = []
        # By the first row of a part: which of its rows differ, [B, rows].
        self._differ: dict[int, Tensor] = {}
        self._states: list[Tensor] = []  # whether each differs, ()

    @classmethod
    def of(cls, chunks: list[range], m: int, least: int = 1) -> TwoParts:
        """Returns the parts of chunk `m`; none if it has too few rows."""
        rows, last = len(chunks[m]), len(chunks[-1])
        first = last if m == 0 and least <= last <= rows - least else rows // 2
        return cls(rows, first if first >= least else 0)

    def __iter__(self) -> Iterator[range]:
        yield from (part for part in (range(self._first), range(
            self._first, self._rows)) if self._first)

    def note(self, *call: Tensor) -> None:
        """Records the next call's q, k, v and o of the whole chunk."""
        self._calls.append(call)

    def attend(self, part: range, site: int, *qkv: Tensor) -> Tensor:
        """Returns o of the part's rows; compares its q, k and v."""
        *whole, o = (t[:, :, part.start:part.stop] for t in self._calls[site])
        for mine, wanted in zip(qkv, whole):
            self._compare(part, mine.transpose(1, 2), wanted.transpose(1, 2))
        return o

    def compare(self, part: range, mine: Tensor, whole: Tensor) -> None:
        """Compares the outputs [B, rows, H] of a part and the whole chunk."""
        self._compare(part, mine, whole[:, part.start:part.stop])

    def compare_states(self, mine: Mapping[Any, Tensor],
                       whole: Mapping[Any, Tensor], y: Tensor) -> None:
        """Compares the states after the second part with those after the whole
        chunk; the dtype of y, the chunk's output, sets the limit."""
        limit = max(LIMIT, 8 * _precision(y))
        self._states = [
            (mine[key].float() - state.float()).norm() >
            limit * state.float().norm() for key, state in whole.items()]

    def check(self, name: str, chunk: int, same: Tensor) -> bool:
        """Returns `same`; waits for the device once. Raises `Unsupported` if
        `same` is true and too many rows, or a state, differ."""
        if not self._first:  # the chunk has too few rows for two parts
            return bool(same)
        differ = torch.cat([self._differ[part.start] for part in self], 1)
        found = torch.cat([differ.flatten(), same.view(1)]).cpu()
        if not found[-1]:
            return False
        differ = found[:-1].view(differ.shape)
        if self._states and bool(torch.stack(self._states).any()):
            raise Unsupported(name, f"a state after chunk {chunk} that is not "
                              "the same when the chunk runs in two parts")
        rows = round(float(differ.float().mean(0).sum()))
        if rows > max(1, self._few * self._rows) or (
                self._rows >= RUN and bool(differ.all(0).unfold(
                    0, RUN, 1).all(-1).any())):
            raise Unsupported(
                name, f"{rows} of the {self._rows} rows of chunk {chunk} that "
                "are not the same when it runs in two parts: the layer depends "
                "on how many rows it sees, or on their index among them")
        return True

    def _compare(self, part: range, mine: Tensor, whole: Tensor) -> None:
        limit = max(LIMIT, 8 * _precision(whole))
        if limit > LIMIT:
            self._few = MANY
        mine, whole = mine.flatten(2).float(), whole.flatten(2).float()
        norms = whole.norm(dim=-1)
        differ = ((mine - whole).norm(dim=-1) > limit * torch.maximum(
            norms, norms.mean()))
        # Padding rows that see no key are all equal, and count once.
        differ[:, 1:] &= (whole[:, 1:] != whole[:, :-1]).any(-1)
        self._differ[part.start] = differ | self._differ.get(part.start, differ)


def _precision(made: Tensor) -> float:
    """Returns the eps of the narrowest dtype: autocast narrows products."""
    device = made.device.type
    return max(torch.finfo(dtype).eps for dtype in (
        made.dtype, *([torch.get_autocast_dtype(device)] if
                      torch.is_autocast_enabled(device) else [])))
