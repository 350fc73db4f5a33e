"""Batches that are padded on the left, the right or both sides: rows that see
no key change no loss and no gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from models import assert_same, batch, run, streamed, tiny, unstreamed
from support import deep

import sluice

ALWAYS = dict(quiet=True, check="always")
LEFT, RIGHT = (37, 0), (0, 40)  # padded tokens of each of the two batch rows


def padded(left=LEFT, right=(0, 0), counted=False):
    """Returns a batch with padding. With `counted` the first token after left
    padding has a label, which the last row of padding predicts."""
    inputs = batch()
    mask = torch.ones_like(inputs["input_ids"])
    for row, (a, b) in enumerate(zip(left, right)):
        mask[row, :a] = 0
        mask[row, mask.shape[1] - b:] = 0
        inputs["labels"][row, :a if counted else a + 1] = -100
    inputs["labels"][mask == 0] = -100
    return {**inputs, "attention_mask": mask}


KINDS = {
    "grouped heads": ("llama", {}),
    "a window shorter than the padding": (
        "mistral", dict(sliding_window=24)),
    "windows and softcaps": ("gemma2", dict(
        sliding_window=24, query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0)),
    "sinks, experts": ("gpt_oss", dict(
        num_local_experts=4, num_experts_per_tok=2, sliding_window=24)),
    "learned positions": ("gpt2", dict(
        n_embd=32, n_layer=2, n_head=4, n_positions=512, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0)),
    "learned positions, counted from the mask": ("opt", dict(
        ffn_dim=48, dropout=0.0, word_embed_proj_dim=32)),
    "eager attention": ("gptj", dict(
        n_embd=32, n_layer=2, n_head=4, n_positions=512, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0, rotary_dim=4)),
}


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_models_own(session, name):
    kind, changes = KINDS[name]
    model, inputs = tiny(kind, **changes), padded(right=RIGHT)
    other = unstreamed(model, inputs, "sdpa") if kind == "opt" else None
    assert_same(streamed(model, session, inputs, **ALWAYS),
                unstreamed(model, inputs), other)


@pytest.mark.parametrize("kind, changes", [
    KINDS["grouped heads"], KINDS["a window shorter than the padding"]])
def test_padded_hidden_states_in_the_host_are_exact(session, kind, changes):
    model, inputs = tiny(kind, **changes), padded(right=RIGHT)
    assert_same(streamed(model, session, inputs, **ALWAYS, hidden="host"),
                unstreamed(model, inputs))


@pytest.mark.parametrize("left, right", [
    deep(LEFT, (0, 0)), deep((0, 0), RIGHT), (LEFT, RIGHT)])
def test_positions_are_counted_from_the_whole_mask(
        session, left, right):
    """A chunk's positions cannot be counted from its own mask. They are
    counted in advance, as the probe saw the model count them."""
    kind, changes = KINDS["learned positions, counted from the mask"]
    model, inputs = tiny(kind, **changes), padded(left, right)
    assert_same(streamed(model, session, inputs, **ALWAYS, hidden="host"),
                unstreamed(model, inputs), unstreamed(model, inputs, "sdpa"))


@pytest.mark.parametrize("name, hidden", [
    ("grouped heads", "device"), ("learned positions", "host"),
    ("learned positions, counted from the mask", "host"),
    ("eager attention", "device"), deep("grouped heads", "host"),
    deep("learned positions", "device"),
    deep("learned positions, counted from the mask", "device"),
    deep("eager attention", "host")])
def test_labels_on_right_padding_are_exact(session, name, hidden):
    """Rows of right padding see keys and have positions, so their labels count
    as in the plain model."""
    kind, changes = KINDS[name]
    model, inputs = tiny(kind, **changes), padded((0, 0), RIGHT)
    inputs["labels"] = inputs["input_ids"]
    assert_same(streamed(model, session, inputs, **ALWAYS, hidden=hidden),
                unstreamed(model, inputs), unstreamed(model, inputs, "sdpa")
                if kind == "opt" else None)


def test_positions_may_begin_after_the_padding(session):
    """The first token after the padding has position 0, as in generation. The
    second case also packs documents."""
    model, inputs = tiny(), padded()
    positions = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    for at in (positions, positions % 17):
        given = {**inputs, "position_ids": at, "use_cache": False}
        assert_same(streamed(model, session, given, **ALWAYS),
                    unstreamed(model, given))


def test_a_batch_row_may_be_padding_alone(session):
    model, inputs = tiny(), padded(left=(75, 20))
    got = streamed(model, session, inputs, **ALWAYS)
    assert_same(got, unstreamed(model, inputs))


def test_rows_without_keys_have_the_output_of_torchs_attention(session):
    """torch's attention returns 0 for a row that sees nothing. So the label of
    such a row is exact if the model itself uses torch's attention."""
    model, inputs = tiny(), padded(counted=True)
    model.set_attn_implementation("sdpa")
    for more in ({}, {"hidden": "host"}):
        assert_same(streamed(model, session, inputs, **ALWAYS, **more),
                    unstreamed(model, inputs))


@pytest.mark.parametrize("head", ["rows", "whole"])
def test_a_label_on_padding_is_refused_for_eager_attention(session, head):
    model, inputs = tiny(), padded(counted=True)
    eager, torchs = (unstreamed(model, inputs, attention).loss
                     for attention in ("eager", "sdpa"))
    assert abs(eager - torchs) > 1e-5  # the two losses differ
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           head=head)
    with pytest.raises(sluice.Unsupported, match="first token after padding"):
        run(model, inputs)
    assert_same(run(model, padded()), unstreamed(model, padded()))
    assert stream.stats().host_bytes == 0


def test_evaluation_and_generation_are_the_models_own(session):
    model = tiny().eval()
    inputs = padded()
    prompt = {k: inputs[k] for k in ("input_ids", "attention_mask")}
    twin = copy.deepcopy(model)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    with torch.no_grad():
        real = inputs["attention_mask"].bool()
        ours, theirs = (m(**prompt, use_cache=False).logits[real]
                        for m in (model, twin))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        blocks = stream.stats().blocks
        assert blocks > 0
        ours, theirs = (m.generate(**prompt, max_new_tokens=4,
                                   do_sample=False) for m in (model, twin))
    assert torch.equal(ours, theirs) and stream.stats().blocks == blocks
