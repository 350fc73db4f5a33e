"""The loss of chunks of rows, as one autograd node that computes its gradients
in forward; see [Note: chunked head] in head.

[Note: routers' loss] A causal model may add a loss of its router logits to the
loss of the labels. The model's own forward computes the routers' loss alone if
no row has a label. The first call with router logits checks, on FEW
rows, that the two parts add up to the model's loss.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from sluice.base.argument_table import IGNORED
from sluice.base.argument_table import shifted as shifted_labels
from sluice.base.errors import Unsupported
from sluice.base.precision import near, wide_dtype
from sluice.hf import fsdp_units, routers
from sluice.hf.ends import Left
from sluice.hf.head import Head
from sluice.node import calls
from sluice.node.hidden_rows import InHost, OnDevice
from sluice.node.replay import Gradients, Slot, distinct, leaves, slots
from sluice.node.step import chunks_of

FEW = 40  # rows
LIMIT = 1e-5  # relative difference of losses and gradients in fp32


class Labels(NamedTuple):
    """The labels of a call, and how many rows the head runs on at a time."""

    shifted: Tensor  # [B, S]
    count: Tensor | int  # type: ignore[assignment]  # hides tuple.count
    chunk: int


def of(head: Head, hidden: Tensor, shifted: Tensor, count: Tensor | int,
       chunk: int | None = None, left: Left | None = None) -> Tensor:
    """Returns the loss () of hidden [B, S, H] for shifted labels [B, S]: a sum
    over rows / `count`. With `left`, `hidden` is the last layer's output."""
    labels = Labels(shifted, count, chunk or head.rows_at_once(
        hidden.shape[-1]))

    def by_rows(h: Tensor) -> Tensor:
        found = slots(head)  # FSDP2 has gathered its units by now
        if left is not None:
            found += slots(left.ends.after)
        return Loss.apply(head, labels, left, found, torch.is_grad_enabled(),
                          h, *distinct(found))

    behind = [] if left is None else left.ends.after.units()
    return fsdp_units.through([*head.units(), *behind], by_rows, hidden)


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, head: Head, labels: Labels, left: Left | None,
                found: list[Slot], needs: bool, hidden: Tensor,
                *parameters: Tensor) -> Tensor:
        needs_h = needs and ctx.needs_input_grad[5]
        needs = needs_h or (needs and any(ctx.needs_input_grad[6:]))
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        # The code after the layers holds little memory per row, and each run
        # costs host time: run it on several chunks at once.
        at_once = labels.chunk * (1 if left is None else left.ends.together)
        in_host = left is not None and isinstance(left.step.hidden, InHost)
        place = left.step.hidden if in_host else OnDevice(
            head.stream.arena, chunks_of(hidden.shape[1], at_once))
        source = place.reading(hidden, "the head")
        dh = place.writing() if needs_h else None
        gradients = Gradients(found) if needs else None
        with gradients.in_place() if needs else contextlib.nullcontext(), (
                torch.set_grad_enabled(needs)):
            for m, rows in enumerate(place.chunks):
                h = source.read(m).detach()
                source.drop(m)
                part = _of_rows(head, h, rows, labels, left, total, needs_h)
                if needs_h:
                    dh.write(m, part)
        ctx.kept = (dh, gradients.take()) if needs else None
        return total.to(wide_dtype(hidden))

    @staticmethod
    @calls.once
    def backward(ctx, scale: Tensor):
        if ctx.kept is None:
            raise RuntimeError(calls.ONCE)
        (dh, of_parameters), ctx.kept = ctx.kept, None
        if dh is not None:
            dh.scale(scale)
        return None, None, None, None, None, (
            None if dh is None else dh.tensor()), *[
                None if g is None else g.mul_(scale) for g in of_parameters]


def _of_rows(head: Head, hidden: Tensor, rows: range, labels: Labels,
             left: Left | None, total: Tensor, needs_h: bool) -> Tensor | None:
    """Adds the loss of hidden [B, c, H] to `total`. Returns the gradient of
    `hidden` if `needs_h`, else None."""
    h = hidden.requires_grad_(needs_h)
    made = h if left is None else left.rows(h, rows)
    parts = []
    for a in range(0, len(rows), labels.chunk):
        x = made.detach()[:, a:a + labels.chunk].requires_grad_(
            made.requires_grad)
        here = rows[a:a + labels.chunk]
        loss = head.rows(x, labels.shifted[:, here.start:here.stop],
                         labels.count)
        total += loss.detach()
        if loss.requires_grad:
            torch.autograd.backward(loss)
        if made.requires_grad:
            parts.append(x.grad)
    if not parts:
        return None
    dx = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    if made is not h:
        torch.autograd.backward(made, dx)
        dx = h.grad
    return dx


def with_routers(head: Head, loss: Tensor, logits: Tensor, base: Any,
                 mask: Tensor | None) -> MoeCausalLMOutputWithPast:
    """Returns the model's output, with the routers' loss added to `loss`
    ([Note: routers' loss]). `base`: the base model's output for `mask`."""
    noted = base[routers.NAME]
    if not head.adds_routers:
        _try(head, noted)
        head.adds_routers = True
    added, alone = _added(head, noted, mask)
    return MoeCausalLMOutputWithPast(loss=loss + added, aux_loss=alone,
                                     logits=logits, router_logits=noted)


def _added(head: Head, noted: tuple[Tensor, ...], mask: Tensor | None
           ) -> tuple[Tensor, Tensor]:
    """Returns (what router logits add to the loss, aux_loss)."""
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
    few = [n.flatten(0, -2)[:FEW] for n in noted]
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


def probe(head: Head) -> None:
    """Sets `stream.head` unless the user chose it: "rows" if the chunked loss
    and its gradients equal those of transformers' own head over all rows, else
    "whole", which leaves the head to the model."""
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
    shifted = shifted_labels(labels)
    count = (shifted != IGNORED).sum()
    found = distinct(slots(head))

    def results(loss: Callable[[Tensor], Tensor]) -> list[Tensor]:
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
            return False  # it also trains another weight, say of the base
        ours = results(lambda h: of(head, h, shifted, count, 16))
        theirs = results(whole)
    return all(near(a, b, LIMIT) for a, b in zip(ours, theirs))
