"""Log-probabilities of given tokens, computed by rows, equal those from the
model's logits."""

from __future__ import annotations

import pytest
import torch
from models import VOCAB, Run, assert_same, batch, tiny, unstreamed
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

import sluice
from sluice.hf import lazy_logits as by_rows


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Splits short sequences into several chunks, the last of them partial."""
    monkeypatch.setattr(by_rows, "ROWS", 32)


def graded(model, *values):
    """Returns a Run of the sum of squares, which has a different gradient per
    row."""
    model.zero_grad()
    loss = sum((value * value).sum() for value in values)
    loss.backward()
    return Run(loss.item(), {n: None if p.grad is None else p.grad.clone()
                             for n, p in model.named_parameters()})


MODELS = {
    "grouped heads": ("llama", {}),
    "tied, biases": ("qwen2", dict(tie_word_embeddings=True)),
    "softcaps": ("gemma2", dict(
        sliding_window=24, query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0)),
    "scaled": ("cohere", dict(logit_scale=0.3)),
    "divided": ("granite", dict(logits_scaling=4.0)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [2, 33, 75])
def test_logprobs_are_those_of_the_logits(session, name, length):
    kind, changes = MODELS[name]
    model, ids = tiny(kind, **changes), batch(2, length)["input_ids"]
    targets = batch(2, length, seed=7)["input_ids"]
    logits = model(input_ids=ids, use_cache=False).logits
    logp = selective_log_softmax(logits, targets, 0.7)
    entropy = entropy_from_logits(logits / 0.7)
    expected = graded(model, logp, entropy)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           check="always")
    assert stream.head == "rows"
    found = sluice.logprobs(model, input_ids=ids, targets=targets,
                            temperature=0.7, entropy=True)
    assert stream.stats().blocks > 0
    for ours, theirs in zip(found, (logp, entropy)):
        assert ours.dtype == torch.float32 and ours.shape == (2, length)
        assert torch.allclose(ours, theirs, rtol=2e-5, atol=2e-5)
    assert_same(graded(model, *found), expected)
    assert stream.stats().host_bytes == 0
    stream.unstream()


def test_labels_are_shifted_and_ignored_rows_are_zero(session):
    model, inputs = tiny(), batch()
    logits = model(**inputs, use_cache=False).logits[:, :-1]
    wanted = selective_log_softmax(logits, inputs["labels"][:, 1:].clamp(0))
    ignored = inputs["labels"][:, 1:] == -100
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    found = sluice.logprobs(model, **inputs)
    assert not found[:, -1].any() and not found[:, :-1][ignored].any()
    assert torch.allclose(found[:, :-1][~ignored], wanted[~ignored],
                          rtol=2e-5, atol=2e-5)
    # The negated mean of the log-probabilities is the loss.
    mean = -found.sum() / (~ignored).sum()
    assert abs(mean - model(**inputs).loss) < 1e-5
    del found, mean
    assert stream.stats().host_bytes == 0  # a forward without backward


def test_an_unstreamed_model_gives_the_same_logprobs(session):
    model, inputs = tiny(), batch()
    before = sluice.logprobs(model, **inputs)
    sluice.stream(model, session=session, chunk=16, quiet=True)
    with torch.no_grad():
        found = sluice.logprobs(model, **inputs)
    assert torch.allclose(found, before, rtol=2e-5, atol=2e-5)
    assert_same(_loss(model, inputs), unstreamed(model, inputs),
                unstreamed(model, inputs, "sdpa"))


def _loss(model, inputs):
    """Returns the model's loss, computed from the log-probabilities."""
    model.zero_grad()
    count = (inputs["labels"][:, 1:] != -100).sum()
    loss = -sluice.logprobs(model, **inputs).sum() / count
    loss.backward()
    return Run(loss.item(), {n: p.grad for n, p in model.named_parameters()})


def test_host_bytes_include_the_heads_input(session):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=32, quiet=True)
    tokens, hidden, kv, heads, layers, chunks = 128, 32, 16, 4, 2, 4
    found = sluice.logprobs(model, **batch(1, tokens))
    found.sum().backward()
    per_token = layers * (4 * hidden + 2 * 4 * kv + 4 * hidden + 4 * heads)
    step = tokens * (per_token + 8 * kv * (1 - 1 / chunks))
    assert stream.stats().host_peak_bytes == max(
        step, tokens * (per_token + 4 * hidden))
    assert stream.stats().host_bytes == 0


def test_arguments_that_do_not_match_are_refused(session):
    model, inputs = tiny(), batch()
    sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(ValueError, match="labels or targets"):
        sluice.logprobs(model, input_ids=inputs["input_ids"])
    with pytest.raises(ValueError, match=r"shape \(2, 74\) for \(2, 75\)"):
        sluice.logprobs(model, input_ids=inputs["input_ids"],
                        targets=inputs["labels"][:, 1:])
    assert model(input_ids=inputs["input_ids"]).logits.shape == (2, 75, VOCAB)
