"""In replays the gradients of linear layers are torch's, and weight gradients
are added inside the product."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from models import assert_same, batch, run, tiny, unstreamed, wrap_mlps
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import sluice
from sluice.node import linears
from sluice.node.replay import Gradients, slots

SHAPES = [(7, 5), (1, 5), (5,), (2, 3, 5), (2, 1, 3, 5), (0, 5), (2, 0, 5)]


def inputs(shape, dtype, count=3, seed=0):
    """Returns one x per chunk."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
            for _ in range(count)]


def chunks(layer, xs, of=lambda y: y, patched=True):
    """Runs backward chunk by chunk. Returns the summed gradients of the
    parameters, then the gradient of each x."""
    layer, found = copy.deepcopy(layer), []
    with linears.in_place(layer.modules() if patched else ()):
        for x in xs:
            x = x.clone().requires_grad_()
            y = of(layer(x))
            torch.autograd.backward(y, torch.sin(y.detach() + 1))
            found.append(x.grad)
    return [p.grad for p in layer.parameters()] + found


def assert_near(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype == b.dtype
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype,count", [
    (torch.float32, 3), (torch.float64, 3), (torch.bfloat16, 1)])
def test_gradients_are_torchs(shape, bias, dtype, count):
    layer = nn.Linear(5, 3, bias=bias, dtype=dtype)
    xs = inputs(shape, dtype, count)
    assert_near(chunks(layer, xs), chunks(layer, xs, patched=False))


def test_bf16_gradients_are_summed_in_fp32():
    """A bf16 product cannot add to an fp32 sum, so its result is added
    separately."""
    layer = nn.Linear(5, 3, dtype=torch.bfloat16)
    gradients = Gradients(slots(layer))
    xs = inputs((4, 5), torch.bfloat16)
    wanted = sum(chunks(layer, [x], patched=False)[0].float() for x in xs)
    with gradients.in_place():
        for x in xs:
            y = layer(x)
            y.backward(torch.sin(y.detach() + 1))
    assert torch.equal(gradients.take()[0], wanted.bfloat16())


@pytest.mark.parametrize("rows,width,made", [
    (512, 129, 257), (513, 1, 64), (3, 1000, 1), (191, 64, 64)])
def test_gradients_of_large_products_are_close_to_fp64(rows, width, made):
    layer = nn.Linear(width, made)
    xs = inputs((rows, width), torch.float32)
    for got, wanted in zip(chunks(layer, xs), chunks(
            layer.double(), [x.double() for x in xs], patched=False)):
        bound = 1e-6 * math.sqrt(rows + width) * float(wanted.norm())
        assert float((got - wanted).norm()) <= bound


@pytest.mark.parametrize("view", [
    lambda x: x.transpose(0, 1), lambda x: x[:, ::2], lambda x: x.expand(
        2, *x.shape), lambda x: x[:1].expand(3, *x.shape[1:])])
@pytest.mark.parametrize("of", [
    lambda y: y, lambda y: y.transpose(0, 1), lambda y: y.sum(0),
    lambda y: y[..., :1].expand_as(y), lambda y: y.relu_()])
def test_gradients_of_views_are_torchs(view, of):
    layer = nn.Linear(5, 3)
    x = [view(x) for x in inputs((4, 6, 5), torch.float32)]
    assert_near(chunks(layer, x, of), chunks(layer, x, of, patched=False))


class Twice(nn.Module):
    """Uses one weight in several products, and outside of products."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 5)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(self.one(self.one(x))) * self.one.weight.sum()


class Maps(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Linear(5, 3)

    def forward(self, x):
        return torch.vmap(self.own)(x)


class Cuts(nn.Module):
    """Computes the gradients of its weight in a backward of its own."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(5, 5)

    def forward(self, x):
        return Inner.apply(x, self.own, *self.own.parameters())


class Inner(torch.autograd.Function):
    """Recomputes a layer in its own backward."""

    @staticmethod
    def forward(ctx, x, layer, *parameters):
        ctx.layer = layer
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        found = torch.autograd.grad(y, [x, *ctx.layer.parameters()], dy)
        return found[0], None, *found[1:]


class Doubles(nn.Module):
    """Registers a hook on the weight's gradient in its forward."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(5, 3)

    def forward(self, x):
        handle = self.own.weight.register_hook(lambda g: 2 * g)
        y = self.own(x)
        y.register_hook(lambda _: None)
        self.__dict__.setdefault("handles", []).append(handle)
        return y


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Linear(5, 3)

    def forward(self, x):
        return self.own(input=x)


@pytest.mark.parametrize("made", [Twice, Maps, Cuts, Doubles, Named])
def test_other_uses_of_a_weight_add_to_its_gradient(made):
    layer, xs = made(), inputs((4, 5), torch.float32)
    assert_near(chunks(layer, xs), chunks(layer, xs, patched=False))


def test_frozen_weights_and_inputs_get_no_gradient():
    layer, xs = nn.Linear(5, 3), inputs((4, 5), torch.float32)
    layer.weight.requires_grad_(False)
    got = chunks(layer, xs)
    assert got[0] is None
    assert_near(got, chunks(layer, xs, patched=False))
    layer.weight.requires_grad_(True)
    with linears.in_place([layer]):
        for x in xs:
            layer(x).sum().backward()
    assert layer.weight.grad is not None and xs[0].grad is None


def test_an_input_that_is_written_afterwards_is_an_error():
    layer = nn.Linear(5, 3)
    with linears.in_place([layer]):
        x = torch.ones(4, 5, requires_grad=True) * 1
        y = layer(x)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="inplace"):
            y.sum().backward()
    assert "forward" not in vars(layer)


def test_gradients_under_autocast_are_torchs():
    layer, xs = nn.Linear(5, 3), inputs((4, 5), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert_near(chunks(layer, xs), chunks(layer, xs, patched=False))


class Adding(TorchDispatchMode):
    """Counts additions inside products (`inside`), and separate additions to
    tensors of `shapes` (`beside`)."""

    def __init__(self, shapes):
        super().__init__()
        self._shapes, self.inside, self.beside = set(shapes), 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.addmm_.default:
            self.inside += 1
        elif func is torch.ops.aten.add_.Tensor and (
                args[0].shape in self._shapes):
            self.beside += 1
        return func(*args, **(kwargs or {}))


def test_a_streams_gradients_are_added_inside_their_products(session):
    model, inputs = tiny(), batch()
    linear = [m for m in model.model.modules() if type(m) is nn.Linear]
    shapes = {m.weight.shape for m in linear}
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    try:
        for _ in range(2):  # the second time some products are skipped
            with Adding(shapes) as adding:
                found = run(model, inputs)
            assert_same(found, expected)
            assert adding.inside == 4 * len(linear) and adding.beside == 0
    finally:
        stream.unstream()
    assert not any("forward" in vars(m) for m in model.modules())


@pytest.mark.parametrize("made", [Twice, Maps, Cuts])
def test_streamed_layers_may_use_weights_in_other_ways(session, made):
    class Beside(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.more = inner, made()

        def forward(self, x):
            y = self.inner(x)
            return torch.cat((y[..., :5] + 1e-2 * self.more(
                y[..., :5].flatten(0, 1)).view(*y.shape[:2], -1).repeat(
                    1, 1, 5)[..., :5], y[..., 5:]), -1)

    model = wrap_mlps(Beside)
    expected = unstreamed(model, batch())
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    try:
        for _ in range(2):
            assert_same(run(model, batch()), expected)
    finally:
        stream.unstream()
