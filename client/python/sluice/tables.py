"""Tables with a row per position, which layers index with their positions.

[Note: tables]
A layer that runs on a chunk needs the table of all rows. It gets one in two
ways. As an argument [S, D], which is told from one that has the layer's own
rows by running alone. Or from a module of its own that makes a table as long as
it is told, by the argument `seq_len`: within a chunk that is the chunk's
number of rows, and the module is told the whole sequence's, as in the model.
Both are tried, and the probe judges.

A table that a module keeps, and that grows in a longer sequence, grows in the
first chunk of a layer's forward, before it is used.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sluice.captured import Seen
from sluice.errors import Unsupported
from sluice.layer import LENGTH, tell_length
from sluice.rows import named_arguments
from sluice.streamed import Stream


class Told:
    """Modules of some layers that are told the whole sequence's length, until
    `undo`."""

    def __init__(self, layers: Sequence[nn.Module]):
        self._modules = {m for layer in layers for m in layer.modules()
                         if LENGTH in inspect.signature(m.forward).parameters}
        self._hooks = [m.register_forward_pre_hook(
            tell_length, with_kwargs=True) for m in self._modules]

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, module: nn.Module) -> bool:
        return module in self._modules

    def undo(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()


def probed(layers: Sequence[nn.Module], stream: Stream,
           seen: Mapping[int, Seen], probe: Callable[[], None]) -> Told:
    """The modules that are told, and in `stream.rows` which arguments are given
    whole, so that `probe` finds the layers exact; raises what it raised else.
    `seen` says what the layers are called with."""
    names = {name for index, call in seen.items()
             for name in _tables(layers[index], call, stream)}
    refusals: list[Unsupported] = []
    for whole in ({}, dict.fromkeys(names)) if names else ({},):
        for tells in (True, False):
            told = Told(layers if tells else ())
            if tells and not told:
                continue
            rows, stream.rows = stream.rows, {**stream.rows, **whole}
            written = {layer: stream.written.get(layer, [])
                       for layer in layers}
            for layer, places in written.items():
                # A table that grew is not put back, but stays as it grew.
                stream.written[layer] = [p for p in places
                                         if p[0] not in told]
            try:
                probe()
                return told
            except BaseException as error:
                told.undo()
                stream.rows = rows
                stream.written.update(written)
                if not isinstance(error, Unsupported):
                    raise
                refusals.append(error)
    # What the layer raised may be about the way in which it was tried.
    raise next((r for r in refusals if r.__cause__ is None), refusals[0])


def _tables(layer: nn.Module, seen: Seen, stream: Stream) -> list[str]:
    """Names of arguments that have rows as [S, D], for all of a batch."""
    found = []
    for name, value in named_arguments(layer, seen.args, seen.kwargs):
        leaves = pytree.tree_leaves(value)
        if stream.rows.get(name) == -2 and leaves and all(
                isinstance(v, Tensor) and v.dim() == 2 for v in leaves):
            found.append(name)
    return found
