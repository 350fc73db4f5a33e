"""Whether all ranks of a group were called with the same.

Ranks that hold other rows, or cut them otherwise, would wait for each other
in a collective until it times out, or exchange rows that do not belong
together. So each step begins with one small all-reduce of hashes, and every
rank raises the same error where they differ.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from sluice.base import argument_table
from sluice.base.errors import Error, Status
from sluice.base.hashing import of_tensor, of_values
from sluice.base.randomness import RandomState
from sluice.ranks.groups import Ranks

# What is told apart in the error; all else is "another argument". Always as
# many, because ranks that have other arguments must not reduce other shapes.
SETTINGS = ("call", "chunk", "min_tokens", "length")
INPUTS = tuple(argument_table.those("agreed"))
# Random states, which come last, may differ.
_NAMES = (*SETTINGS, *INPUTS, "another argument", "")


class Asked(NamedTuple):
    """What ranks are to be called with alike: `settings`, plain values of
    SETTINGS, and in `hashes`, by _NAMES, also arguments."""

    settings: Mapping[str, Any]
    hashes: Tensor


def asked(device: torch.device, settings: Mapping[str, Any],
          given: Mapping[str, Any]) -> Asked:
    """
    Args:
      given: arguments of a forward; of tensors with fractions the shape
        counts, but of hidden_states the bits.
    """
    hashes = [of_values(settings.get(name)) for name in SETTINGS]
    hashes += [_of(given.get(name), device, name == "hidden_states")
               for name in INPUTS]
    hashes.append(sum((_of(given[name], device) ^ of_values(name)
                       for name in sorted(given)
                       if name not in INPUTS and given[name] is not None),
                      torch.zeros((), dtype=torch.int64, device=device)))
    hashes.append(RandomState(device).number())
    return Asked(settings, torch.stack([
        h if isinstance(h, Tensor) else _number(h, device) for h in hashes]))


def agree(ranks: Ranks, outer: Asked | None, inner: Asked) -> int:
    """A seed that is the same on all ranks, made of one's random state.
    Raises `Error` on all ranks where they differ; a collective. `outer` is what
    the call around this one was called with, if there is one: a GPU is waited
    for once."""
    if outer is None:
        outer = Asked({}, torch.zeros_like(inner.hashes))
    own = torch.stack([outer.hashes, inner.hashes])
    most = torch.stack([own, ~own])
    ranks.wait(dist.all_reduce(most, dist.ReduceOp.MAX, group=ranks.group,
                               async_op=True), own.device)
    found = torch.cat([most[0] != ~most[1], most[0, 1:]]).tolist()
    ranks.check()
    ranks.call += 1
    for (settings, _), differ in zip((outer, inner), found):
        wrong = [name for name, differs in zip(_NAMES, differ)
                 if differs and name]
        if "call" in wrong:  # all else is another call's
            wrong = ["call"]
        if wrong:
            shown = {name: settings[name] for name in wrong
                     if name in settings}
            raise Error(Status.INVALID_ARGUMENT, (
                f"the {ranks.size} ranks of the sequence group do not agree on "
                f"{', '.join(wrong)}" + (f" (rank {ranks.rank} of the group: "
                                         f"{shown})" if shown else "") +
                ": give each of them the same whole rows and the same settings; "
                "sluice deals sequences to the ranks, and sluice.same_rows() "
                "makes of a loader one that gives all ranks the same"))
    return found[2][-1]


def _of(value: Any, device: torch.device, bits: bool = False) -> Tensor:
    """int64 (): of a tensor's numbers and their places, on `device`; those
    that may have fractions count with `bits` alone."""
    if not isinstance(value, Tensor):
        # Other objects count only as being there.
        plain = isinstance(value, (type(None), bool, int, float, str))
        return _number(of_values(value if plain else "object"), device)
    shape = _number(of_values((tuple(value.shape), str(value.dtype))), device)
    if not bits and (value.is_floating_point() or value.is_complex()):
        return shape
    return of_tensor(value).to(device) ^ shape


def _number(value: int, device: torch.device) -> Tensor:
    """Without a copy, for which the host would wait."""
    return torch.full((), value, dtype=torch.int64, device=device)
