"""A model is not probed if this process has probed an equal model. A model that
differs in anything is probed."""

from __future__ import annotations

import pytest
import torch
from models import assert_same, batch, run, tiny, unstreamed
from transformers.models.llama import modeling_llama
from walk import configs

import sluice


def mixing(own):
    return lambda self, x: own(self, x) + 1e-2 * x.roll(1, 1)


def changed(place, name, make):
    return lambda model, patch: patch.setattr(
        place, name, make(getattr(place, name)))


def hooked(model, patch):
    model.model.layers[1].mlp.register_forward_hook(
        lambda module, args, y: y + 1e-2 * y.roll(1, 1))


def on_the_instance(model, patch):
    mlp = model.model.layers[1].mlp
    mlp.forward = mixing(type(mlp).forward).__get__(mlp)


CHANGES = {
    "a class's forward": changed(modeling_llama.LlamaMLP, "forward", mixing),
    "a function of its file": changed(
        modeling_llama, "apply_rotary_pos_emb", lambda own: lambda q, *rest:
        own(q + 1e-2 * q.roll(1, 2), *rest)),
    "a hook": hooked, "an instance's forward": on_the_instance,
}


@pytest.fixture
def tried(session, monkeypatch):
    """Returns a function that streams `tiny()` and then the given model. A
    probe of the given model raises."""
    def stream(model):
        sluice.stream(tiny(), session=session, quiet=True).unstream()
        monkeypatch.setattr("sluice.proof.probe.probe_layer", refuse)
        return sluice.stream(model, session=session, chunk=16, quiet=True)

    return stream


def refuse(*_):
    raise sluice.Unsupported("layer", "the layer is probed again")


def test_an_equal_model_is_exact_without_a_probe(tried):
    model = tiny()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    expected = unstreamed(model, batch())
    stream = tried(model)
    assert stream.head == "rows"
    assert_same(run(model, batch()), expected)


def test_a_model_with_other_settings_is_probed(tried):
    for changes in dict(rms_norm_eps=1e-5), dict(attention_bias=True), dict(
            num_hidden_layers=3), dict(rope_theta=5000.0):
        with pytest.raises(sluice.Unsupported, match="probed again"):
            tried(tiny(**changes))
    model = tiny()
    model.model.layers[1].mlp.requires_grad_(False)
    with pytest.raises(sluice.Unsupported, match="probed again"):
        tried(model)


def test_layers_run_whole_in_an_equal_model_without_a_probe(
        session, monkeypatch):
    def streamed(model):
        stream = sluice.stream(model, session=session, chunk=16, quiet=True)
        return stream, [(vars(kind), count) for kind, count in stream.whole]

    stream, expected = streamed(configs.tiny("jamba"))
    stream.unstream()
    monkeypatch.setattr("sluice.proof.probe.probe_layer", refuse)
    model, twin = configs.tiny("jamba"), configs.tiny("jamba")
    stream, found = streamed(model)
    assert found == expected and len(found) == 1
    assert_same(run(model, batch()), run(twin, batch()))


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_mixes_rows_is_found_in_a_known_class(
        session, monkeypatch, change):
    sluice.stream(tiny(), session=session, quiet=True).unstream()
    model = tiny()
    CHANGES[change](model, monkeypatch)
    assert sluice.stream(model, session=session, chunk=16, quiet=True).whole
