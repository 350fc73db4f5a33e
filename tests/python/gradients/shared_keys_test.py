"""In models with layers that use the keys and values of an earlier layer
(Gemma-4), gradients flow back to the earlier layer."""

from __future__ import annotations

import pytest
import torch
import transformers
from models import assert_same, batch, run, unstreamed
from walk import configs

import sluice

if "gemma4_text" not in transformers.CONFIG_MAPPING:
    pytest.skip("this transformers has no such model", allow_module_level=True)

KINDS = ["sliding_attention", "full_attention"] * 2


def tiny() -> torch.nn.Module:
    config = configs.tiny_config("gemma4_text")
    assert config.layer_types == KINDS and config.num_kv_shared_layers == 2
    return configs.tiny("gemma4_text")


@pytest.fixture(scope="module")
def calls():
    """Returns three batches, and the plain model's steps with both attentions.
    """
    made = []
    for length in (64, 75, 97):
        inputs = batch(length=length, seed=length)
        made.append((inputs, unstreamed(tiny(), inputs),
                     unstreamed(tiny(), inputs, "sdpa")))
    return made


@pytest.mark.parametrize("options", [
    dict(), dict(rerun=0.5), dict(check="always"),
    dict(policy={"*": {"keep": 0.3, "swap": 0.4}})], ids=str)
def test_gradients_are_the_models_own(session, calls, options):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           **options)
    for inputs, expected, other in calls:
        assert_same(run(model, inputs), expected, other)
        assert stream.stats().host_bytes == 0
    stream.unstream()


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_training_may_begin_at_any_layer(session, first):
    model = tiny()
    model.requires_grad_(False)
    model.model.layers[first:].requires_grad_(True)
    inputs = batch()
    expected, other = (unstreamed(model, inputs, attention)
                       for attention in (None, "sdpa"))
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(run(model, inputs), expected, other)
    assert stream.stats().host_bytes == 0
    stream.unstream()


def test_shared_keys_are_freed_with_their_forward(session):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    with torch.no_grad():
        model(**batch())
    assert stream.stats().host_bytes == 0
    loss = model(**batch()).loss
    assert stream.stats().host_bytes > 0
    del loss
    assert stream.stats().host_bytes == 0
    stream.unstream()


def test_the_check_accepts_bf16(session):
    model = tiny().bfloat16()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           check="always")
    run(model, batch())
    assert stream.stats().host_bytes == 0
    stream.unstream()


@pytest.mark.parametrize("method, instead, found", [
    ("pairs", lambda self: [], "the gradient of 'input'"),
    ("collect", lambda self: (self._taken.clear(), self._made.clear()),
     "the gradient of 'shared_kv_states.sliding_attention.0'")])
def test_a_gradient_that_is_not_returned_is_found(session, monkeypatch, method,
                                                  instead, found):
    """Removes code that returns gradients of shared keys. The probe must
    notice."""
    monkeypatch.setattr(f"sluice.node.shared_tensors.Handing.{method}", instead)
    stream = sluice.stream(tiny(), session=session, quiet=True)
    assert any(found in kind.why for kind, _ in stream.whole)
