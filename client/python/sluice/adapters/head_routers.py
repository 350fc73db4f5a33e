"""What a causal model adds to its loss of its routers' logits, where head and
loss run by rows.

It is asked of the model's own forward: with no row that has a label its loss
is that part alone. That the two parts add up is tried in the first call that
asks, on a few of its logits.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from sluice.adapters import routers
from sluice.adapters.head import Head
from sluice.errors import Unsupported
from sluice.named import IGNORED
from sluice.precision import near

ROWS = 40
LIMIT = 1e-5  # of the loss, in fp32


def answer(head: Head, loss: Tensor, logits: Tensor, base: Any,
           mask: Tensor | None) -> MoeCausalLMOutputWithPast:
    """The model's answer, where `loss` is that of its logits, and `base` is
    what its base model answered for the mask [B, S]."""
    noted = base[routers.NAME]
    if not head.adds_routers:
        _try(head, noted)
        head.adds_routers = True
    added, alone = _added(head, noted, mask)
    return MoeCausalLMOutputWithPast(
        loss=loss + added, aux_loss=alone, logits=logits,
        router_logits=noted)


def _added(head: Head, noted: tuple[Tensor, ...], mask: Tensor | None
           ) -> tuple[Tensor, Tensor]:
    """(what is added to the loss, aux_loss)."""
    weight = head.causal.get_output_embeddings().weight
    row = torch.zeros(1, 1, weight.shape[1], dtype=weight.dtype,
                      device=noted[0].device)
    label = torch.full((1, 1), IGNORED, device=row.device)
    found = _whole(head, row, label, noted, attention_mask=mask,
                   num_items_in_batch=1)
    return found.loss, found.aux_loss


def _whole(head: Head, hidden: Tensor, labels: Tensor,
           noted: tuple[Tensor, ...] | None, **more: Any) -> Any:
    with head.stub(hidden, noted):
        return head.own(inputs_embeds=hidden, labels=labels, use_cache=False,
                        **{routers.ASKED: noted is not None}, **more)


@torch.no_grad()
def _try(head: Head, noted: tuple[Tensor, ...]) -> None:
    few = [n.flatten(0, -2)[:ROWS] for n in noted]
    rows = len(few[0])
    each = tuple(f if n.dim() == 2 else f[None] for f, n in zip(few, noted))
    weight = head.causal.get_output_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, rows, weight.shape[1], generator=generator).to(
        few[0].device, weight.dtype)
    labels = torch.randint(weight.shape[0], (1, rows), generator=generator
                           ).to(hidden.device)
    together = _whole(head, hidden, labels, each).loss
    apart = _whole(head, hidden, labels, None).loss + _added(
        head, each, None)[0]
    if not near(apart, together, LIMIT):
        raise Unsupported(head.causal, "a loss of routers' logits that is not "
                          "added to that of the labels", 'stream it with '
                          'head="whole"')
