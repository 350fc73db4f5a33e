"""Records the arguments of layers for a whole sequence, without running the
layers, and cuts one rank's rows out of the arguments."""
from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sluice.base.errors import Unsupported
from sluice.hf.stand_in import Instead
from sluice.node.rows import leaf_of, named_arguments, needs_grad
from sluice.node.step import Step

# A tensor among arguments: index of the layer, name and leaf of the argument.
Place = tuple[int, str, int]


class Call(NamedTuple):
    args: tuple
    kwargs: dict[str, Any]


class Noted(Instead):
    """Stands in for a layer: runs the user's forward pre-hooks, which may
    change the arguments, passes these to `note`, and returns the input."""

    def __init__(self, layer: nn.Module, returns_tuple: bool,
                 note: Callable[[Tensor, Call], None]):
        super().__init__(layer)
        self._note, self._returns_tuple = note, returns_tuple

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for key, hook in self._base._forward_pre_hooks.items():
            function = getattr(hook, "func", hook)  # the hook may be a partial
            if function.__module__.startswith("torch.distributed"):
                continue  # FSDP2's hook gathers weights, not used here
            if key in self._base._forward_pre_hooks_with_kwargs:
                args, kwargs = hook(self._base, args, kwargs) or (args, kwargs)
            else:
                changed = hook(self._base, args)
                args = args if changed is None else changed if isinstance(
                    changed, tuple) else (changed,)
        x = args[0] if args else kwargs.pop("hidden_states")
        self._note(x, Call(args[1:], kwargs))
        return (x,) if self._returns_tuple else x


def zeros(table: nn.Module, expand: bool) -> Instead:
    """Returns an embedding of zeros; with `expand`, one zero in memory."""
    def forward(ids: Tensor, *_: Any, **__: Any) -> Tensor:
        shape = (*ids.shape, table.weight.shape[-1])
        return torch.zeros(() if expand else shape, dtype=table.weight.dtype,
                           device=ids.device).expand(shape)

    return Instead(table, forward)


def rows_of(layer: nn.Module, step: Step, own: Tensor,
            cuts: dict[int, tuple[Tensor, Tensor]],
            declared: Mapping[str, int | None], whole: Call) -> Call:
    """Returns this rank's rows of a call for the whole sequence. Layers share
    tensors: each is cut once, and kept in `cuts`."""
    def cut(name: str, part: Any) -> Any:
        leaf = leaf_of(layer, name, part, step, step.length, declared)
        if leaf.dim is None or part.shape[leaf.dim] == 1:
            return part
        if id(part) not in cuts:  # cuts keeps `part`, so its id stays unique
            cuts[id(part)] = part, part.index_select(leaf.dim, own)
        return cuts[id(part)][1]

    cuts_of = [pytree.tree_map(functools.partial(cut, name), value)
               for name, value in named(layer, whole)]
    return Call(tuple(cuts_of[:len(whole.args)]),
                dict(zip(whole.kwargs, cuts_of[len(whole.args):])))


def named(layer: nn.Module, call: Call) -> list[tuple[str, Any]]:
    return named_arguments(layer, call.args, call.kwargs)


def leaves_of(index: int, layer: nn.Module, call: Call
              ) -> Iterator[tuple[Place, Any]]:
    for name, value in named(layer, call):
        for i, leaf in enumerate(pytree.tree_leaves(value)):
            yield (index, name, i), leaf


def merged(index: int, layer: nn.Module, whole: Call, local: Call,
           made_of_rows: Collection[Place]) -> Call:
    """Returns the arguments of layer `index` for a rank's rows: from `whole`,
    or `local` if they need a gradient or are in `made_of_rows`."""
    known, own = dict(named(layer, whole)), dict(named(layer, local))
    if known.keys() != own.keys() or len(whole.args) != len(local.args):
        raise Unsupported(layer, "other arguments for some rows than for the "
                          "whole sequence", "do not use a group")

    def one(name: str) -> Any:
        mine, spec = pytree.tree_flatten(own[name])
        leaves, other = pytree.tree_flatten(known[name])
        needed = [needs_grad(m) or (index, name, i) in made_of_rows
                  for i, m in enumerate(mine)]
        if spec == other:
            return pytree.tree_unflatten([m if n else _typed(k, m) for k, m, n
                                          in zip(leaves, mine, needed)], spec)
        if any(needed):
            raise Unsupported(layer, f"argument '{name}', which is another for "
                              "the whole sequence", "do not use a group")
        return known[name]

    values = [one(name) for name in own]
    return Call(tuple(values[:len(local.args)]),
                dict(zip(local.kwargs, values[len(local.args):])))


def _typed(known: Any, own: Any) -> Any:
    """Casts `known` to own's dtype: a run on zeros may give another dtype."""
    if isinstance(known, Tensor) and isinstance(own, Tensor) and (
            known.is_floating_point()):
        return known.to(own.dtype)
    return known
