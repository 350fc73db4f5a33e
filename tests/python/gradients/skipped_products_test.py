"""Products skipped in replays change no gradient, and a product that something
reads is computed."""

from __future__ import annotations

import pytest
import torch
from models import assert_same, batch, run, tiny, unstreamed
from torch import nn

import sluice

DOWN = "mlp.down_proj.weight"
KV = {"self_attn.k_proj.weight", "self_attn.v_proj.weight"}


def steps(session, model, inputs=None, count=3, **settings):
    """Some streamed steps, and the weights that the last layer spares."""
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           **settings)
    try:
        found = [run(model, inputs or batch()) for _ in range(count)]
        return found, [stream._spared[m].weights for m in model.modules()
                       if m in stream._spared][-1]
    finally:
        stream.unstream()


@pytest.mark.parametrize("kind,check", [
    ("llama", "first"), ("llama", "always"), ("llama", "off"),
    ("phi", "first")])  # phi's products have biases
def test_skipped_products_change_no_bit(session, kind, check):
    model = tiny(kind)
    expected = unstreamed(model, batch())
    (first, *later), weights = steps(session, model, check=check)
    assert KV < weights
    assert_same(first, expected)
    for found in later:
        for name, gradient in first.gradients.items():
            assert torch.equal(found.gradients[name], gradient), name


GPT2 = dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)


@pytest.mark.parametrize("kind,changes,spared", [
    ("phi", {}, {"mlp.fc2.weight", "self_attn.dense.weight"} | KV),
    ("gpt2", GPT2, {"mlp.c_proj.weight"}),
    ("gpt2", {**GPT2, "resid_pdrop": 0.1}, set()),
    ("gemma2", {}, KV), ("qwen3", {}, {DOWN, "self_attn.v_proj.weight"})])
def test_the_expected_products_are_skipped(session, kind, changes, spared):
    """A parallel attention's too, and those of k and v; none before a norm,
    under a dropout, or together with q."""
    model = tiny(kind, **changes)
    (first, *_, last), weights = steps(session, model)
    assert weights == spared
    if not changes.get("resid_pdrop"):
        assert_same(last, first)


class Keeps(torch.autograd.Function):
    """y, and what its backward needs of it where nobody sees it."""

    @staticmethod
    def forward(ctx, y):
        ctx.y = y
        return y.view_as(y)

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.y.sign()


class Reads(nn.Module):
    def __init__(self, own, read):
        super().__init__()
        self.own, self.read = own, read

    def forward(self, x):
        return self.read(self.own(x))


@pytest.mark.parametrize("read", [
    Keeps.apply, lambda y: y * y, lambda y: y + y.detach(),
    lambda y: y if float(y.detach().sum()) > 1e9 else 2 * y,
    lambda y: y.relu_()])
def test_a_product_that_is_read_is_computed(session, read):
    model = tiny()
    for layer in model.model.layers:
        layer.mlp.down_proj = Reads(layer.mlp.down_proj, read)
    expected = unstreamed(model, batch())
    found, weights = steps(session, model)
    assert "mlp.down_proj.own.weight" not in weights
    for each in found:
        assert_same(each, expected)


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, k):
        return k * self.gain


@pytest.mark.parametrize("made", [
    lambda: lambda k: k * k, lambda: torch.abs, lambda: Keeps.apply, Gain])
def test_a_k_product_that_is_read_is_computed(session, made):
    model = tiny()
    for layer in model.model.layers:
        layer.self_attn.k_proj = Reads(layer.self_attn.k_proj, made())
    expected = unstreamed(model, batch())
    found, weights = steps(session, model)
    assert "self_attn.k_proj.own.weight" not in weights
    for each in found:
        assert_same(each, expected)


def test_a_hook_registered_later_receives_the_product(session):
    model, seen = tiny(), []
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    run(model, batch())
    expected = run(model, batch())
    model.model.layers[0].mlp.register_forward_hook(
        lambda module, args, y: seen.append(bool(y.isfinite().all())))
    assert_same(run(model, batch()), expected)
    assert seen and all(seen)
    assert stream._spared[model.model.layers[0]].weights == KV
    stream.unstream()


def test_a_changed_attribute_is_traced_again(session):
    class Scaled(nn.Linear):
        squared = False

        def forward(self, x):
            y = super().forward(x)
            return y * y if self.squared else y

    model = tiny()
    for layer in model.model.layers:
        layer.mlp.down_proj.__class__ = Scaled
        layer.mlp.down_proj.squared = False
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    run(model, batch())
    run(model, batch())
    for layer in model.model.layers:
        layer.mlp.down_proj.squared = True
    found = run(model, batch())
    stream.unstream()
    assert_same(found, run(model, batch()))
