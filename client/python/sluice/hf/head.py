"""Runs a causal model's own head and loss function on some rows.

[Note: chunked head]
Logits of a million tokens do not fit anywhere. With `labels`, the causal
model's own forward runs once per chunk of rows, with a stub as base model that
returns those rows of the real hidden states; so everything that the head does
(caps, scales, biases) is done. The loss is the model's `loss_function` on
labels shifted beforehand. Gradients are computed chunk by chunk in forward, so
that no tensor of a chunk is kept for backward.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from sluice.base import swapped
from sluice.hf import fsdp_units as units
from sluice.hf import routers
from sluice.hf.ends import Ends
from sluice.hf.stand_in import Instead, Output, Recorded

ROWS = 256  # minimum rows of a chunk of the head
# A chunk gets more rows while its logits take at most HIDDEN times the bytes of
# the hidden states of a layer's chunk. The layer's own products take more.
HIDDEN = 8
_NOT_CALLED = "the head does not call its base model"


class Head:
    """The modules of a causal model outside its base model."""

    def __init__(self, causal: nn.Module, ends: Ends):
        self.causal, self.ends, self.stream = causal, ends, ends.stream
        self.adds_routers = False  # whether `_try` of head_loss has passed
        self.made: tuple[int, torch.dtype]  # width, dtype of the latest logits
        # (parent, name) of modules that the head may call: base or decoder.
        self.places = [(causal, causal.base_model_prefix), *(
            (parent, name) for parent in causal.modules()
            for name, child in parent._modules.items()
            if child is ends.decoder and parent is not causal)]
        self.place = self.places[0]  # the place that the head calls
        # The model's forward, or one that the user or accelerate put over it.
        self.own = vars(causal).get("forward") or functools.partial(
            type(causal).forward, causal)

    def is_of_transformers(self) -> bool:
        """Returns whether the model's forward is one of transformers: a user's
        may distinguish calls in ways that no probe covers."""
        own, mine = type(self.causal).forward, self.own
        # A copy of a streamed model has its class's forward as an attribute.
        return own in (getattr(mine, "func", None), getattr(
            mine, "__func__", None)) and (
            own.__module__.startswith("transformers."))

    def rows_at_once(self, width: int) -> int:
        vocabulary = self.causal.get_output_embeddings().weight.shape[0]
        chunk = self.stream.chunk
        return max(ROWS, min(chunk, HIDDEN * width * chunk // vocabulary))

    def rows(self, hidden: Tensor, shifted: Tensor,
             count: Tensor | int) -> Tensor:
        """Returns the contribution () of some rows to the loss."""
        logits = self.logits(hidden)
        self.made = logits.shape[-1], logits.dtype
        return self.causal.loss_function(
            logits=logits, labels=None, shift_labels=shifted.contiguous(),
            vocab_size=logits.shape[-1], num_items_in_batch=count)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [B, c, V] of some rows."""
        with self.stub(hidden) as called, units.unhooked(self.units()):
            logits = self.own(inputs_embeds=hidden, use_cache=False,
                              **self.no_routers).logits
        if not called:
            raise RuntimeError(_NOT_CALLED)
        return logits

    def of_base(self, given: dict[str, Any]) -> Any:
        """Returns the base model's output in the model's own forward."""
        base = self.base

        def record(*args: Any, **kwargs: Any) -> None:
            raise Recorded(base(*args, **kwargs))

        try:
            with self._instead(record):
                self.own(**given)
        except Recorded as recorded:
            return recorded.args[0]
        raise RuntimeError(_NOT_CALLED)

    def after(self, answer: Any) -> contextlib.AbstractContextManager:
        """Inside, the forward runs only the head, on the base's `answer`."""
        return self._instead(lambda *_, **__: answer)

    @property
    def no_routers(self) -> dict[str, bool]:
        """Arguments that switch off router logits, which the stub lacks."""
        return {routers.ASKED: False} if routers.asked(self.causal, {}) else {}

    @contextlib.contextmanager
    def stub(self, hidden: Tensor, noted: Sequence[Tensor] | None = None
             ) -> Iterator[list[bool]]:
        """Inside, the base model returns `hidden` and the router logits
        `noted`; the list gets an entry for each call of the base model."""
        called: list[bool] = []

        def answer(*_: Any, **__: Any) -> Output:
            called.append(True)
            return Output(last_hidden_state=hidden, router_logits=noted)

        with self._instead(answer):
            yield called

    def _instead(self, forward: Callable) -> contextlib.AbstractContextManager:
        parent, name = self.place
        return swapped.items((parent._modules, name, Instead(
            self.base, forward)))

    @property
    def base(self) -> nn.Module:
        parent, name = self.place
        return parent._modules[name]

    def modules(self) -> Iterator[nn.Module]:
        base = set(self.base.modules())
        return (m for m in self.causal.modules() if m not in base)

    def units(self) -> list[nn.Module]:
        """Returns the head's FSDP2 units, without the causal model."""
        return [m for m in self.modules()
                if isinstance(m, FSDPModule) and m is not self.causal]

    @property
    def is_sharded(self) -> bool:
        """Whether the model, or a layer, is an FSDP2 unit."""
        return any(isinstance(m, FSDPModule) for m in (
            self.causal, *self.ends.adapter.layers))
