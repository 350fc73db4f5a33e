"""The streamed head's answer to `sluice.logprobs`."""
from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from sluice import chunked, scoring
from sluice.adapters import units
from sluice.adapters.head import Head
from sluice.calls import Call
from sluice.model import Engaging
from sluice.scoring import Asked
from sluice.step import Step

ROWS = 256  # per chunk, as for the loss


class _Call(chunked.ChunkedCall):
    """The head over all rows: [B, S, H] -> [B, S, 1 or 2]."""

    def __init__(self, step: Step, head: Head, asked: Asked,
                 targets: Tensor):
        super().__init__(step, head, type(head.causal).__name__)
        self._head, self._asked, self._targets = head, asked, targets

    def compute(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        rows = self.step.chunks[m]
        targets = self._targets[:, rows.start:rows.stop]
        return self._asked.of(self._head.logits(x), targets)


def answer(call: Call, head: Head, asked: Asked, base: Any
           ) -> CausalLMOutputWithPast:
    """What `asked` wants, for logits, of the base model's output."""
    hidden: Tensor = base[0]
    targets = call.own(asked.targets)
    if targets.shape != hidden.shape[:2]:
        raise scoring.wrong_shape(asked.targets, hidden.shape[:2])
    step = head.stream.begin(hidden.shape[1], hidden.device, Engaging(),
                             chunk=ROWS, alone=True)
    asked.answered = True
    found = units.through(head.units(), lambda h: chunked.run(
        _Call(step, head, asked, targets), h), hidden)
    return CausalLMOutputWithPast(logits=call.all_rows(
        found, asked.targets.shape[1]))
