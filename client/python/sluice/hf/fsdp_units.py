"""Runs FSDP2 units in chunks, and refuses modules that cannot run so.

[Note: units] FSDP2's hooks gather a unit's weights around its forward and its
backward, and reduce the gradients after backward. They must run once, not once
per chunk. So the loop over the chunks is the unit's forward (`through`); in the
loop the unit runs without its hooks, on the gathered weights (`unhooked`).
"""
from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
)
from torch.distributed.fsdp import FSDPModule

from sluice.base import swapped
from sluice.base.errors import Unsupported


def through(units: Sequence[nn.Module], run: Callable[[Any], Tensor], x: Any
            ) -> Tensor:
    """Returns `run(x)`, called as the units' forward within their hooks."""
    if not units:
        return run(x)
    *rest, unit = units

    # `setting.forward_of` recognizes this function by its module, sluice.
    def forward(x: Any) -> Tensor:
        return through(rest, run, x)

    with swapped.attributes(unit, forward=forward):
        return unit(x)


def unhooked(units: Sequence[nn.Module]) -> contextlib.AbstractContextManager:
    """Inside, the units have the forwards of their classes and no hooks."""
    without = {"forward": swapped.ABSENT, "_forward_pre_hooks": OrderedDict(),
               "_forward_hooks": OrderedDict()}
    return swapped.items(*((vars(unit), name, value) for unit in units
                           for name, value in without.items()))


def refuse_compiled(index: int, layer: nn.Module) -> None:
    """Raises `Unsupported` for a compiled layer: probes would be compiled."""
    if isinstance(layer, torch._dynamo.OptimizedModule):
        raise Unsupported(f"layer {index}", "it is compiled", "compile modules "
                          "inside of it instead, as layer.mlp.compile()")


def refuse_within(layer: nn.Module) -> None:
    """Raises `Unsupported` for modules within a layer that would be gathered
    for each chunk (FSDP2 units) or call attention again (checkpoints)."""
    for name, module in layer.named_modules():
        if name and isinstance(module, FSDPModule):
            raise Unsupported(layer, f"'{name}' is an FSDP2 unit inside a "
                              "streamed layer", "shard the layer as a whole: "
                              "fully_shard(layer)")
        if isinstance(module, CheckpointWrapper):
            raise Unsupported(layer, f"'{name}' is checkpointed inside a "
                              "streamed layer", "leave activation "
                              "checkpointing out: of a streamed layer only its "
                              "input is kept")
