"""What stands in a causal model for its base model while the head is run by
itself, or while only the base model's answer is wanted."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sluice import swapped
from sluice.hidden import stand_in


class Output(dict):
    """What a base model returns, to any head: the hidden states, and None
    for whatever else is asked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        if key == 0:
            return self["last_hidden_state"]
        return () if isinstance(key, slice) else self.get(key)


class Instead(nn.Module):
    """Stands for the base model, and has the base model's other attributes."""

    def __init__(self, base: nn.Module):
        super().__init__()
        object.__setattr__(self, "_base", base)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(object.__getattribute__(self, "_base"), name)


def in_every_place(base: nn.Module, owners: Iterable[nn.Module],
                   made: Callable[[nn.Module], nn.Module]
                   ) -> contextlib.AbstractContextManager:
    """Other modules wherever one of the owners has `base`."""
    return swapped.items(*(
        (owner._modules, name, made(base)) for owner in owners
        for name, child in owner._modules.items() if child is base))


def in_place_of_layers(layers: nn.ModuleList, others: Iterable[nn.Module]
                       ) -> contextlib.AbstractContextManager:
    """The list has `others`, one for each layer."""
    return swapped.attributes(
        layers, _modules=dict(zip(layers._modules, others)))


class Stub(Instead):
    """Answers `hidden`, and the logits of routers."""

    def __init__(self, base: nn.Module, hidden: Tensor,
                 routers: Sequence[Tensor] | None = None):
        super().__init__(base)
        self._hidden, self._routers, self.called = hidden, routers, False

    def forward(self, *args: Any, **kwargs: Any) -> Output:
        self.called = True
        return Output(last_hidden_state=self._hidden,
                      router_logits=self._routers)


class Recorded(BaseException):
    """What was asked for is there; nothing else of the forward is wanted."""


class Recorder(Instead):
    """Keeps what the base model answers, and ends the forward there."""

    output: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.output = self._base(*args, **kwargs)
        raise Recorded


class Answered(Instead):
    """Answers what the base model has answered before."""

    def __init__(self, base: nn.Module, output: Any):
        super().__init__(base)
        self._output = output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._output


class First(Instead):
    """Stands for the first layer: ends the forward with what it is given."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any):
        raise Recorded(hidden_states)


class Answer(Instead):
    """Stands for a layer, and answers y."""

    def __init__(self, base: nn.Module, y: Tensor, as_tuple: bool):
        super().__init__(base)
        self._answer = (y,) if as_tuple else y

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer


class Saying(Instead):
    """Stands for a layer: hands on its input, and answers `more` after it."""

    def __init__(self, base: nn.Module, more: Tensor):
        super().__init__(base)
        self.more = more

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any):
        return hidden_states, self.more


class Embedding(Instead):
    """Stands for the embedding; see [Note: stand-ins]."""

    def __init__(self, base: nn.Module, dtype: torch.dtype):
        super().__init__(base)
        self._dtype = dtype

    def forward(self, ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return stand_in((*ids.shape, self.weight.shape[1]), self._dtype,
                        ids.device)
