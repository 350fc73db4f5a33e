"""Cases of groups.py with heads other than a language model's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from heads import HEADS, graded, padded_left, tiny_with
from models import assert_same

import sluice


def other_heads(session, group) -> None:
    """The heads of HEADS may read any row, so each rank computes them from all
    rows."""
    for name, (head, inputs) in HEADS.items():
        for place in ("device", "host"):
            model = tiny_with(head)
            twin, twins = copy.deepcopy(model), []
            for attention in ("eager", "sdpa"):
                twin.set_attn_implementation(attention)
                twins.append(graded(twin, inputs))
            stream = sluice.stream(model, session=session, chunk=16,
                                   group=group, quiet=True, hidden=place)
            got = graded(model, inputs)
            for gradient in got.gradients.values():
                dist.all_reduce(gradient, group=group)
                gradient /= dist.get_world_size(group)
            assert_same(got, *twins)
            assert stream.stats().blocks > 0, name
            stream.unstream()


def dropout_in_heads(session, group) -> None:
    """All ranks draw the same dropout in the head, although their seeds
    differ. All have the same loss, and the average of their gradients is the
    gradient of that loss."""
    model = tiny_with("TokenClassification", dropout=0.3).double()
    sluice.stream(model, session=session, chunk=16, group=group, quiet=True)
    inputs = HEADS["a class for each token"][1]
    torch.manual_seed(7 + dist.get_rank(group))
    state = torch.get_rng_state()
    got = graded(model, inputs)
    losses = [None, None]
    dist.all_gather_object(losses, got.loss, group=group)
    assert losses[0] == losses[1]
    weight = model.model.layers[0].mlp.up_proj.weight
    direction = got.gradients["model.layers.0.mlp.up_proj.weight"]
    dist.all_reduce(direction, group=group)
    direction /= dist.get_world_size(group)

    def loss(step: float) -> float:
        torch.set_rng_state(state)
        with torch.no_grad():
            weight.add_(step * direction)
            found = model(**inputs).loss.item()
            weight.sub_(step * direction)
        return found

    step = 0.2  # large, because the loss is fp32
    slope, expected = (loss(step) - loss(-step)) / (2 * step), (
        float(direction.norm()) ** 2)
    assert abs(slope - expected) <= 1e-3 * expected


def rows_of_padding(session, group) -> None:
    """Every rank refuses a call with a loss that counts rows of padding."""
    model = tiny_with("QuestionAnswering")
    sluice.stream(model, session=session, chunk=16, group=group, quiet=True)
    inputs = {**HEADS["an answer that begins and ends"][1],
              "attention_mask": padded_left()["attention_mask"]}
    with pytest.raises(sluice.Unsupported, match="a loss that counts rows"):
        graded(model, inputs)


BEHAVIOURS_OF_HEADS = {"dropout_in_heads": dropout_in_heads,
                       "rows_of_padding": rows_of_padding,
                       "other_heads": other_heads}
