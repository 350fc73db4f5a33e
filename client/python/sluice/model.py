"""The protocols by which modules below the adapters know a model."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor, nn


class Engaging(Protocol):
    """What a step needs of a model."""

    def engage(self) -> contextlib.AbstractContextManager:
        """The model asks the current step for masks and attention."""

    def inside(self) -> contextlib.AbstractContextManager:
        """Around a layer's own forward on one chunk."""


class Layered(Engaging, Protocol):
    """What a trial needs of a twin's layers."""

    name: str

    @property
    def layers(self) -> Sequence[nn.Module]: ...

    def own_forward(self, module: nn.Module) -> Callable:
        """The module's forward of before, bound to it."""


class Patched(Layered, Protocol):
    """Layers whose forward is replaced."""

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
