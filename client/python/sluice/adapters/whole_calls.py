"""What layers are called with for a whole sequence, without running them; and
one rank's rows of it."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sluice.errors import Unsupported
from sluice.rows import leaf_of
from sluice.adapters.stand_in import Instead

if TYPE_CHECKING:
    from sluice.step import Step


class Call(NamedTuple):
    """What one layer is called with beside the hidden states."""

    args: tuple
    kwargs: dict[str, Any]


class Noted(Instead):
    """Stands for a layer: says what it is called with, which the user's hooks
    before its forward may change, and hands on its input."""

    def __init__(self, layer: nn.Module, returns_tuple: bool,
                 note: Callable[[Tensor, Call], None]):
        super().__init__(layer)
        self._note, self._returns_tuple = note, returns_tuple

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for key, hook in self._base._forward_pre_hooks.items():
            function = getattr(hook, "func", hook)  # of a partial
            if function.__module__.startswith("torch.distributed"):
                continue  # it gathers weights, which are not asked here
            if key in self._base._forward_pre_hooks_with_kwargs:
                args, kwargs = hook(self._base, args, kwargs) or (args, kwargs)
            else:
                changed = hook(self._base, args)
                args = args if changed is None else changed if isinstance(
                    changed, tuple) else (changed,)
        x = args[0] if args else kwargs.pop("hidden_states")
        self._note(x, Call(args[1:], kwargs))
        return (x,) if self._returns_tuple else x


class Expanded(Instead):
    """Stands for the embedding: one row of zeros, as long as it is asked."""

    def forward(self, ids: Tensor, *_: Any, **__: Any) -> Tensor:
        weight = self._base.weight
        return torch.zeros((), dtype=weight.dtype, device=ids.device).expand(
            *ids.shape, weight.shape[-1])


def rows_of(layer: nn.Module, step: Step, own: Tensor,
            cuts: dict[int, tuple[Tensor, Tensor]],
            declared: Mapping[str, int], name: str, value: Any) -> Any:
    """This rank's rows of an argument for the whole sequence."""
    def cut(part: Any) -> Any:
        leaf = leaf_of(layer, name, part, step, step.length, declared)
        if leaf.dim is None or part.shape[leaf.dim] == 1:
            return part
        if id(part) not in cuts:  # kept with it: another has another id
            cuts[id(part)] = part, part.index_select(leaf.dim, own)
        return cuts[id(part)][1]
    return pytree.tree_map(cut, value)


def merged(layer: nn.Module, whole: Call, local: Call) -> Call:
    """The whole sequence's arguments, but what needs a gradient."""
    name = type(layer).__name__
    if len(whole.args) != len(local.args) or (
            whole.kwargs.keys() != local.kwargs.keys()):
        raise Unsupported(name, "other arguments for some rows than for the "
                          "whole sequence", "do not use a group")

    def one(known: Any, own: Any) -> Any:
        mine, spec = pytree.tree_flatten(own)
        leaves, other = pytree.tree_flatten(known)
        if spec == other:
            return pytree.tree_unflatten(
                [_leaf(k, m) for k, m in zip(leaves, mine)], spec)
        if any(_needs_grad(v) for v in mine):
            raise Unsupported(name, "an argument that needs a gradient and is "
                              "another for the whole sequence",
                              "do not use a group")
        return known

    return Call(tuple(one(k, o) for k, o in zip(whole.args, local.args)),
                {n: one(whole.kwargs[n], o) for n, o in local.kwargs.items()})


def _leaf(known: Any, own: Any) -> Any:
    if _needs_grad(own):
        return own
    if isinstance(known, Tensor) and isinstance(own, Tensor) and (
            known.is_floating_point()):
        # The expanded embedding's type is not always that of the real one.
        return known.to(own.dtype)
    return known


def _needs_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
