"""Checks that the chunked head computes what the model's head and loss do."""
from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from sluice.base import argument_table
from sluice.base.argument_table import IGNORED
from sluice.base.precision import near
from sluice.hf import head_loss
from sluice.hf.head import Head
from sluice.node.replay import distinct, leaves, slots

LIMIT = 1e-5  # of a norm, in fp32: rounding gives 1e-7


def probe(head: Head) -> None:
    """Sets `stream.head`: "rows" if the chunked loss equals the model's own
    loss over all rows, else "whole", which leaves the head to the model."""
    how: Literal["rows", "whole"] = "whole"
    for place in head.places:
        head.place = place  # the trial reads it
        try:
            same = head.is_of_transformers() and _same(head)
        except Exception:  # user code may fail on a trial's input
            same = False
        if same:
            how = "rows"
            break
    head.stream.found_head(how)


def _same(head: Head) -> bool:
    weight = head.causal.get_output_embeddings().weight
    torch.manual_seed(0)
    hidden = torch.randn(2, 40, weight.shape[1], device=weight.device,
                         dtype=weight.dtype)
    labels = torch.randint(weight.shape[0], (2, 40)).to(weight.device)
    labels[0, 5:17] = IGNORED
    shifted = argument_table.shifted(labels)
    count = (shifted != IGNORED).sum()
    found = distinct(slots(head))

    def of(loss: Callable[[Tensor], Tensor]) -> list[Tensor]:
        h = hidden.clone().requires_grad_()
        value = loss(h)
        return [value, *torch.autograd.grad(value, [h, *found],
                                            allow_unused=True)]

    def whole(h: Tensor) -> Tensor:
        with head.stub(h):
            return head.own(inputs_embeds=h, labels=labels, use_cache=False,
                            **head.no_routers).loss

    with torch.enable_grad():
        ends = leaves(head.rows(hidden, shifted, count))
        if not all(any(e is p for p in found) for e in ends):
            return False  # e.g. a weight of the base model
        # In chunks of 16, the last one partial.
        ours = of(lambda h: head_loss.of(head, h, shifted, count, 16))
        theirs = of(whole)
    return all(near(a, b, LIMIT) for a, b in zip(ours, theirs))
