"""Skipping products in replays changes no gradient. A product is computed if
its result is read."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from models import Run, assert_same, batch, run, tiny, unstreamed
from support import deep
from torch import nn

import sluice

DOWN = "mlp.down_proj.weight"
KV = {"self_attn.k_proj.weight", "self_attn.v_proj.weight"}


def steps(session, model, inputs=None, count=3, **settings):
    """Returns the runs of `count` streamed steps, and the weights of the
    products that the last layer skips."""
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
    """Replays skip the last product of an MLP, the last product of a parallel
    attention (phi), and k and v. They do not skip a product before a norm
    (gemma2, qwen3), a product under dropout, or a product that also computes q
    (gpt2)."""
    model = tiny(kind, **changes)
    (first, *_, last), weights = steps(session, model)
    assert weights == spared
    if not changes.get("resid_pdrop"):
        assert_same(last, first)


class Keeps(torch.autograd.Function):
    """Returns y and saves it for backward outside of saved-tensor hooks."""

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
    Keeps.apply, deep(lambda y: y * y), lambda y: y + y.detach(),
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


@pytest.mark.parametrize("read", [
    lambda y: y * y, deep(lambda y: y.clamp(-0.1, 0.1)), deep(torch.tanh)])
@pytest.mark.parametrize("place", ["mlp.down_proj", "self_attn.k_proj"])
def test_a_product_that_is_read_from_a_later_step_on_is_computed(
        session, place, read):
    """A closure decides whether the layer reads it; no attribute, module or
    argument of the layer changes."""
    models, reads = [tiny(), tiny()], []
    for layer in (each for m in models for each in m.model.layers):
        layer.set_submodule(place, Reads(
            layer.get_submodule(place),
            lambda y: read(y) if reads else y))
    stream = sluice.stream(models[0], session=session, chunk=16, quiet=True)
    for step, on in enumerate([False, False, True, True, False]):
        reads[:] = [True] * on
        found, expected = (run(m, batch(seed=step)) for m in models)
        assert_same(found, expected)
    stream.unstream()


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, k):
        return k * self.gain


@pytest.mark.parametrize("made", [
    lambda: lambda k: k * k, deep(lambda: torch.abs),
    deep(lambda: Keeps.apply), Gain])
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


def is_any(name):
    return True


@pytest.mark.parametrize("first,then", [
    (lambda n: "mlp" in n, is_any), (lambda n: "o_proj" in n, is_any),
    (lambda n: "gain" not in n, is_any)])
def test_the_trained_weights_may_change(session, first, then):
    """In backward, a trained scale reads the product that it scales. A frozen
    scale does not."""
    model = tiny()
    for layer in model.model.layers:
        layer.mlp = Reads(layer.mlp, Gain())
        layer.self_attn.v_proj = Reads(layer.self_attn.v_proj, Gain())
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    for trains in (first, then):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trains(name))
        expected = unstreamed_twin(model)
        for _ in range(2):
            assert_same(run(model, batch()), expected)
    stream.unstream()


def unstreamed_twin(model):
    """Runs an unstreamed copy with the same weights."""
    twin = copy.deepcopy(model)
    for layer in (twin, twin.model, *twin.model.layers):
        vars(layer).pop("forward", None)
    return run(twin, batch())


class Inside(nn.Module):
    def __init__(self, own, hooks):
        super().__init__()
        self.own, self.hooks = own, hooks

    def forward(self, *args, **kwargs):
        with self.hooks():
            return self.own(*args, **kwargs)


def cloning():
    return torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t)


def doubling():
    """Saves fp64 copies of tensors, as save_on_cpu saves copies on the host."""
    return torch.autograd.graph.saved_tensors_hooks(
        lambda t: (t.double() if t.is_floating_point() else t, t.dtype),
        lambda kept: kept[0].to(kept[1]))


@pytest.mark.parametrize("hooks", [cloning, doubling])
def test_hooks_on_saved_tensors_may_copy(session, hooks):
    """The hooks surround whole steps, or only a module of a layer."""
    model = tiny()
    expected = unstreamed(model, batch())
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    for around in (hooks, hooks, contextlib.nullcontext, hooks):
        with around():
            assert_same(run(model, batch()), expected)
    stream.unstream()
    for layer in model.model.layers:
        layer.self_attn = Inside(layer.self_attn, hooks)
    found, weights = steps(session, model)
    assert weights == {DOWN}  # the hooks copy attention's products
    for each, wanted in zip(found, [expected] * 3):
        assert_same(Run(each.loss, {n.replace(".own", ""): g for n, g in
                                    each.gradients.items()}), wanted)
