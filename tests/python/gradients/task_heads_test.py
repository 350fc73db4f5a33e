"""Streamed models with heads other than a language model's have the model's
own gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from heads import HEADS, graded, padded_left, tiny_with
from models import assert_same, tiny

import sluice


@pytest.mark.parametrize("hidden", ["device", "host"])
@pytest.mark.parametrize("name", HEADS)
def test_gradients_are_the_models_own(session, name, hidden):
    head, inputs = HEADS[name]
    model = tiny_with(head)
    twin, twins = copy.deepcopy(model), []
    for attention in ("eager", "sdpa"):
        twin.set_attn_implementation(attention)
        twins.append(graded(twin, inputs))
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           check="always", hidden=hidden)
    assert_same(graded(model, inputs), *twins)
    assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0


@pytest.mark.parametrize("name", ["a class for each token",
                                  "an answer that begins and ends"])
def test_a_head_that_reads_padding_rows_is_refused(session, name, capfd):
    """Eager attention and torch's attention differ in rows of padding."""
    head, inputs = HEADS[name]
    inputs = {**inputs, "attention_mask": padded_left()["attention_mask"]}
    model = tiny_with(head)
    losses = []
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        twin = copy.deepcopy(model)
        losses.append(graded(twin, inputs).loss)
        stream = sluice.stream(model, session=session, chunk=16)
        if attention == "eager":
            with pytest.raises(sluice.Unsupported,
                               match="a loss that counts rows.* padding"):
                graded(model, inputs)
            with torch.no_grad():
                model(**inputs)
                model(**inputs)
            assert capfd.readouterr().err.count("padding on the left") == 1
        else:
            got = graded(model, inputs)
            assert abs(got.loss - losses[-1]) < 1e-5 * losses[-1]
        stream.unstream()
    assert abs(losses[0] - losses[1]) > 1e-5


def test_a_custom_loss_that_reads_padding_rows_is_refused(session):
    model = tiny().train()
    sluice.stream(model, session=session, chunk=16, quiet=True)
    inputs = padded_left()
    counts = inputs["attention_mask"].clone()
    for first in (1, 0):  # 1: the loss leaves out rows of padding
        logits = model(**inputs).logits.logsumexp(-1)
        if first:
            (logits * counts).sum().backward()
            continue
        with pytest.raises(sluice.Unsupported, match="attn_implementation"):
            logits.sum().backward()
