"""Interfaces of a model: `hf` implements them, lower packages use them."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(eq=False)
class WholeKind:
    """Layers of a class that run whole ([Note: whole layers], whole_layers)."""

    name: str  # class name of the layers
    why: str  # the property that rules out running them by chunks
    own_attention: bool = False  # they use the model's attention and masks
    # Device memory that backward of one such layer holds, per token of the
    # batch and per pair of tokens of a sequence.
    bytes_per_token: int = 0
    bytes_per_pair: float = 0.0

    def __str__(self) -> str:
        by = ", with the model's own attention" if self.own_attention else ""
        grows = (f" and {self.bytes_per_pair:.1f} per pair of tokens: it "
                 "grows with the square of a sequence's length" if
                 self.bytes_per_pair else "")
        return (f"{self.name} run whole, one at a time{by}: backward of one "
                f"holds {self.bytes_per_token} bytes per token{grows}; not by "
                f"chunks: {self.why}")


class Engaging:
    """Contexts that a step enters around a model's code; no-ops by default."""

    def engage(self) -> contextlib.AbstractContextManager:
        """Routes the model's masks and attention to the current step."""
        return contextlib.nullcontext()

    def inside(self) -> contextlib.AbstractContextManager:
        """Wraps a layer's own forward on one chunk."""
        return contextlib.nullcontext()

    def own_attention(self) -> contextlib.AbstractContextManager:
        """Wraps, inside `engage`, a layer with the model's own attention."""
        return contextlib.nullcontext()


class Layered(Engaging):
    """The decoder layers of a model, or of its twin for trials (proof/twin)."""

    name: str
    layers: Sequence[nn.Module]

    def own_forward(self, module: nn.Module) -> Callable:
        """Returns the module's original forward, bound to it."""
        raise NotImplementedError


class Patched(Layered):
    def __init__(self) -> None:
        self._patches: dict[nn.Module, Any] = {}

    def own_forward(self, module: nn.Module) -> Callable:
        return self._patches[module].own

    def detach(self) -> None:
        while self._patches:
            self._patches.popitem()[1].undo()


class Model(Patched):
    """A transformers model."""

    causal: nn.Module
    decoder: nn.Module
    entry: nn.Module  # streamed module: the decoder, or a model around it
    way: str  # attention by "registry", "written out", "sdpa" or "own"
    logits_last: bool  # router logits are the last item of a layer's output
    layers: nn.ModuleList

    def check_dealing(self, ids: Tensor, chunk: int) -> None:
        """Raises `Unsupported` if the code outside the layers gives other
        results for a rank's rows alone than for all rows."""
        raise NotImplementedError
