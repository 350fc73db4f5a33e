"""What modules below the adapters know of a model."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(eq=False)
class WholeKind:
    """Layers of one kind that run whole; see [Note: whole layers] in
    whole_layers.

    Attributes:
        name: their class.
        why: what about them cannot be cut into chunks.
        own_attention: whether attention and masks are the model's own, made
            for one layer at a time.
        bytes_per_token: that backward of one such layer holds on the device
            for each token of a batch.
        bytes_per_pair: the same for each pair of tokens of a sequence; not 0
            where it grows with the square of the sequence's length.
    """

    name: str
    why: str
    own_attention: bool = False
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
    """What a step needs of a model; here of one that needs nothing."""

    def engage(self) -> contextlib.AbstractContextManager:
        """The model asks the current step for masks and attention."""
        return contextlib.nullcontext()

    def inside(self) -> contextlib.AbstractContextManager:
        """Around a layer's own forward on one chunk."""
        return contextlib.nullcontext()

    def own_attention(self) -> contextlib.AbstractContextManager:
        """While it is engaged, around the forward of a layer that has the
        model's own attention."""
        return contextlib.nullcontext()


class Layered(Engaging):
    """What a trial needs of a twin's layers."""

    name: str
    layers: Sequence[nn.Module]

    def own_forward(self, module: nn.Module) -> Callable:
        """The module's forward of before, bound to it."""
        raise NotImplementedError


class Patched(Layered):
    def __init__(self) -> None:
        self._patches: dict[nn.Module, Any] = {}

    def own_forward(self, module: nn.Module) -> Callable:
        return self._patches[module].own

    def detach(self) -> None:
        """The modules have their own forwards back."""
        while self._patches:
            self._patches.popitem()[1].undo()


class Model(Patched):
    """A model of transformers."""

    causal: nn.Module
    decoder: nn.Module
    entry: nn.Module  # what is streamed: the decoder, or a model around it
    way: str  # how attention is met
    logits_last: bool  # of routers, in what layers answer
    layers: nn.ModuleList

    def check_dealing(self, ids: Tensor, chunk: int) -> None:
        """Raises `Unsupported` where one rank's rows are not the whole's."""
        raise NotImplementedError
