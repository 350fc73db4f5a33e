"""The protocols by which modules below the adapters know a model."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

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


class Engaging(Protocol):
    """What a step needs of a model."""

    def engage(self) -> contextlib.AbstractContextManager:
        """The model asks the current step for masks and attention."""

    def inside(self) -> contextlib.AbstractContextManager:
        """Around a layer's own forward on one chunk."""

    def own_attention(self) -> contextlib.AbstractContextManager:
        """While it is engaged, around the forward of a layer that has the
        model's own attention."""


class Layered(Engaging, Protocol):
    """What a trial needs of a twin's layers."""

    name: str

    @property
    def layers(self) -> Sequence[nn.Module]: ...

    def own_forward(self, module: nn.Module) -> Callable:
        """The module's forward of before, bound to it."""


class Patched(Layered, Protocol):
    """Layers with their forwards replaced."""

    def detach(self) -> None:
        """The modules have their own forwards back."""


class Model(Patched, Protocol):
    """A model of transformers."""

    causal: nn.Module
    decoder: nn.Module
    entry: nn.Module  # what is streamed: the decoder, or a model around it
    way: str  # how attention is met
    logits_last: bool  # of routers, in what layers answer

    @property
    def layers(self) -> nn.ModuleList: ...

    def check_dealing(self, ids: Tensor, chunk: int) -> None:
        """Raises `Unsupported` where one rank's rows are not the whole's."""
