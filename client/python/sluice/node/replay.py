"""Makes a layer's second forward (replay) bitwise equal to the first: replaces
parameters by leaves and restores buffers (`setting` restores attributes).

[Note: aliases]
The replay of a layer runs autograd once per chunk. On the real parameters this
would fire the hooks of DDP, FSDP and optimizers once per chunk, and add partial
gradients into `.grad` in the parameter's own dtype. So the replay uses detached
aliases; their gradients are summed in fp32, by autograd itself if they are fp32
already, and the layer's node returns each sum once.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sluice.base import swapped
from sluice.base.precision import wide_dtype, widened
from sluice.node import linears


class Slot(NamedTuple):
    """Where a module holds a parameter. `trained`: whether the parameter needed
    a gradient when the slot was made; it may be frozen before backward."""

    owner: nn.Module
    name: str
    parameter: nn.Parameter
    trained: bool


def slots(module: nn.Module) -> list[Slot]:
    """Returns every place under `module` that holds a parameter, tied ones
    several times; also frozen ones, which functional_call may replace."""
    return [Slot(owner, name, parameter, parameter.requires_grad)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None]


def distinct(found: Sequence[Slot]) -> list[nn.Parameter]:
    """Returns the trainable parameters, each once."""
    return list({id(s.parameter): s.parameter for s in found
                 if s.trained}.values())


def leaves(of: Tensor) -> list[Tensor]:
    """Returns the tensors that get a `.grad` from a backward of `of`."""
    return [node.variable for node in nodes(of)
            if type(node).__name__ == "AccumulateGrad"]


def nodes(y: Tensor) -> Iterator[Any]:
    todo, seen = [y.grad_fn], {None}
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            yield node
            todo += [following for following, _ in node.next_functions]


def others_in_place(found: Sequence[Slot], others: Mapping[int, Tensor]
                    ) -> contextlib.AbstractContextManager:
    """Makes the module compute with `others`: id of a parameter -> replacement.
    Replacements are nn.Parameter, because torch's parametrizations would turn
    tensors into buffers."""
    return swapped.items(*(
        (s.owner._parameters, s.name, others.get(id(s.parameter), s.parameter))
        for s in found))


# Aliases of a module's parameters for a replay, and sums of their gradients.
class Gradients:
    def __init__(self, found: Sequence[Slot]):
        self._slots = found
        self._parameters = distinct(found)
        self._sums: dict[int, Tensor] = {}
        self._aliases = {id(p): nn.Parameter(p.detach())
                         for p in self._parameters}
        frozen = {id(s.parameter): nn.Parameter(
                      s.parameter.detach(), requires_grad=False) for s in found
                  if s.parameter.requires_grad and not s.trained}
        for key, alias in self._aliases.items():
            if wide_dtype(alias) != alias.dtype:
                alias.register_post_accumulate_grad_hook(self._collector(key))
        self._aliases |= frozen

    def _collector(self, key: int):
        def collect(leaf: Tensor) -> None:
            part, leaf.grad = leaf.grad, None
            if key in self._sums:
                self._sums[key].add_(part)
            else:
                self._sums[key] = widened(part)
        return collect

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Makes the module compute with the aliases within the block."""
        with others_in_place(self._slots, self._aliases), linears.in_place(
                s.owner for s in self._slots if s.trained):
            yield

    def take(self) -> list[Tensor | None]:
        """Returns the sums, as `distinct` orders them; None: no gradient."""
        return [self._sums[id(p)].to(p.dtype) if id(p) in self._sums else
                self._aliases[id(p)].grad for p in self._parameters]


# Detects buffers that were written or replaced since this object was made.
class Buffers:
    def __init__(self, owners: Iterable[nn.Module]):
        self._held = [(owner, name, buffer,
                       buffer._version) for owner in owners for name,
                      buffer in owner._buffers.items() if buffer is not None]

    def written(self, replaced: bool = True) -> list[tuple[nn.Module, str]]:
        """Returns buffers written in place; with `replaced`, also new ones."""
        return [(owner, name) for owner, name, buffer, version in self._held
                if (replaced and owner._buffers.get(name) is not buffer)
                or buffer._version != version]


# Keeps the contents of buffers, and restores them.
class Snapshot:
    def __init__(self, places: Sequence[tuple[nn.Module, str]]):
        self._kept = [(owner, name, owner._buffers[name],
                       owner._buffers[name].clone(),
                       owner._buffers[name]._version) for owner, name in places]

    def restore(self, if_changed: bool = False) -> None:
        """Restores the same tensor objects with their former contents. With
        `if_changed` only buffers that were written are written back: writing to
        the others would break graphs that saved them."""
        for owner, name, buffer, value, version in self._kept:
            if not if_changed or buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(value)
            owner._buffers[name] = buffer
