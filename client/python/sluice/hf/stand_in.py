"""Stand-ins for a model's base model, layers or embedding, with which another
part of the model runs alone, or records an input or output."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base import swapped
from sluice.node.hidden_rows import stand_in


class Output(dict):
    """A base model's output, for any head; None for fields that are not set."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        if key == 0:
            return self["last_hidden_state"]
        return () if isinstance(key, slice) else self.get(key)


class Recorded(BaseException):
    """Ends a forward early; `args` is (value,), the result that is needed."""


class Instead(nn.Module):
    """Runs `forward` in place of the module `base`; has its attributes."""

    def __init__(self, base: nn.Module, forward: Callable | None = None):
        super().__init__()
        object.__setattr__(self, "_base", base)
        if forward is not None:
            self.forward = forward

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(object.__getattribute__(self, "_base"), name)


def in_every_place(base: nn.Module, owners: Iterable[nn.Module],
                   made: Callable[[nn.Module], nn.Module]
                   ) -> contextlib.AbstractContextManager:
    """Replaces `base` by another module wherever one of the owners has it."""
    return swapped.items(*(
        (owner._modules, name, made(base)) for owner in owners
        for name, child in owner._modules.items() if child is base))


def in_place_of_layers(layers: nn.ModuleList, others: Iterable[nn.Module]
                       ) -> contextlib.AbstractContextManager:
    return swapped.attributes(
        layers, _modules=dict(zip(layers._modules, others)))


def record(hidden_states: Tensor, *_: Any, **__: Any) -> None:
    """Ends the model's forward by a `Recorded` with the layer's input."""
    raise Recorded(hidden_states)


def embedding(base: nn.Module, dtype: torch.dtype) -> Instead:
    """Stands in for the embedding; see [Note: stand-ins] in hidden_rows."""
    return Instead(base, lambda ids, *_, **__: stand_in(
        (*ids.shape, base.weight.shape[1]), dtype, ids.device))
