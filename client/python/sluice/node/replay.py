"""What a layer's second forward needs to be bitwise the first: parameters as
leaves of our own, the buffers it had (its attributes: `setting`).

[Note: aliases]
Replaying a layer chunk by chunk runs autograd once per chunk. On the real
parameters that would fire the hooks of DDP, FSDP and optimizers once per
chunk, and add partial gradients into `.grad` in the parameter's own type. So
the replay sees detached aliases in their place; their gradients are summed in
fp32, by autograd itself where they are fp32 already, and the layer's autograd
node returns each sum once.
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
    """Where a module holds a parameter, and whether that is trained: as it was
    when the slot was made, whatever is frozen until backward."""

    owner: nn.Module
    name: str
    parameter: nn.Parameter
    trained: bool


def slots(module: nn.Module) -> list[Slot]:
    """Every place under `module` that holds a parameter; tied ones have
    several. Frozen ones too: functional_call puts others in for a while."""
    return [Slot(owner, name, parameter, parameter.requires_grad)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None]


def distinct(found: Sequence[Slot]) -> list[nn.Parameter]:
    """The trainable ones, each once."""
    return list({id(s.parameter): s.parameter for s in found
                 if s.trained}.values())


def leaves(of: Tensor) -> list[Tensor]:
    """The tensors with a `.grad` that a backward from `of` would add to."""
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
    """The module computes with `others`, by the id of the parameter that each
    stands for; a parameter that has none there is put back. All are
    nn.Parameter: of anything else torch's parametrizations make a buffer."""
    return swapped.items(*(
        (s.owner._parameters, s.name, others.get(id(s.parameter), s.parameter))
        for s in found))


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
        """The module computes with the aliases."""
        with others_in_place(self._slots, self._aliases), linears.in_place(
                s.owner for s in self._slots if s.trained):
            yield

    def take(self) -> list[Tensor | None]:
        """The sums, in the order of `distinct`; None where nothing came."""
        return [self._sums[id(p)].to(p.dtype) if id(p) in self._sums else
                self._aliases[id(p)].grad for p in self._parameters]


class Buffers:
    def __init__(self, owners: Iterable[nn.Module]):
        self._held = [(owner, name, buffer, buffer._version)
                      for owner in owners
                      for name, buffer in owner._buffers.items()
                      if buffer is not None]

    def written(self, replaced: bool = True) -> list[tuple[nn.Module, str]]:
        """With others in their places, if `replaced`, or in place."""
        return [(owner, name) for owner, name, buffer, version in self._held
                if (replaced and owner._buffers.get(name) is not buffer)
                or buffer._version != version]


class Snapshot:
    def __init__(self, places: Sequence[tuple[nn.Module, str]]):
        self._kept = [(owner, name, owner._buffers[name],
                       owner._buffers[name].clone(),
                       owner._buffers[name]._version)
                      for owner, name in places]

    def restore(self, if_changed: bool = False) -> None:
        """The same tensor objects with the contents of then; `if_changed`
        leaves those alone that were not written, for a graph may need them."""
        for owner, name, buffer, value, version in self._kept:
            if not if_changed or buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(value)
            owner._buffers[name] = buffer
