"""Checks that all ranks of a group were called with the same arguments. Ranks
with different rows or chunks would wait for each other in a collective, or
exchange rows that do not belong together. So each step begins with one small
all-reduce of hashes; if they differ, all ranks raise the same error."""
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

# Settings and inputs that the error names. Their number is fixed, so that ranks
# with different arguments reduce equal shapes.
SETTINGS = ("call", "chunk", "rerun", "min_tokens", "length",
            "torch.is_grad_enabled()")
INPUTS = tuple(argument_table.those("agreed"))
# The last hash, without a name, is the random state, which may differ.
_NAMES = (*SETTINGS, *INPUTS, "another argument", "")


class Asked(NamedTuple):
    """A rank's call, for a comparison: `settings`, plain values by the names in
    SETTINGS, and `hashes`, one for each name in _NAMES."""

    settings: Mapping[str, Any]
    hashes: Tensor


def asked(device: torch.device, settings: Mapping[str, Any],
          given: Mapping[str, Any]) -> Asked:
    """Hashes the settings and arguments of a call. A floating-point tensor
    counts by its shape and dtype only, hidden_states by their bits too."""
    hashes = [of_values(settings[name]) for name in SETTINGS]
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
    """Compares the ranks' calls; a collective. Raises `Error` on all ranks if
    they differ. Returns the same seed on all, from one rank's random state.
    `outer`: the enclosing call, compared by the same collective."""
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
        if "call" in wrong:  # the other hashes are of different calls
            wrong = ["call"]
        if wrong:
            shown = {name: settings[name] for name in wrong if name in settings}
            raise Error(Status.INVALID_ARGUMENT, (
                f"the {ranks.size} ranks of the sequence group do not agree on "
                f"{', '.join(wrong)}" + (f" (rank {ranks.rank} of the group: "
                                         f"{shown})" if shown else "") +
                ": give each of them the same whole rows and the same "
                "settings; sluice deals sequences to the ranks, and "
                "sluice.same_rows() makes of a loader one that gives all ranks "
                "the same"))
    return found[2][-1]


def _of(value: Any, device: torch.device, bits: bool = False) -> Tensor:
    """Returns an int64 () hash, on `device`. The values of floating-point and
    complex tensors count only if `bits`."""
    if not isinstance(value, Tensor):
        # For other objects only their presence counts.
        plain = isinstance(value, (type(None), bool, int, float, str))
        return _number(of_values(value if plain else "object"), device)
    shape = _number(of_values((tuple(value.shape), str(value.dtype))), device)
    if not bits and (value.is_floating_point() or value.is_complex()):
        return shape
    return of_tensor(value).to(device) ^ shape


def _number(value: int, device: torch.device) -> Tensor:
    """Returns `value` as int64 () without a copy that the host waits for."""
    return torch.full((), value, dtype=torch.int64, device=device)
