"""Tests state that changes between a forward and its backward. The gradient is
that of the forward, as in autograd, or the backward raises an error that names
the change."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from models import (
    Run,
    Wrapper,
    assert_same,
    batch,
    run,
    tiny,
    unstreamed,
    wrap_mlps,
)
from peft import LoraConfig, get_peft_model
from support import deep
from torch import nn
from walk import configs

import sluice
from sluice.base.hashing import fingerprint
from sluice.node import setting

SQUARE = dict(num_key_value_heads=4, intermediate_size=32)


class Scaled(Wrapper):
    """Multiplies by an attribute, by entries of a dictionary, and by a buffer.
    """

    def __init__(self, inner):
        super().__init__(inner)
        self.scale, self.on = 1.0, {"a": 1.0}
        self.chosen = ["a"]
        self.register_buffer("times", torch.ones(()))

    def forward(self, x):
        factor = self.scale * sum(self.on[name] for name in self.chosen)
        return self.inner(x) * factor * self.times


def scaled():
    return wrap_mlps(Scaled)


def gradients(model, change):
    """Returns the loss and gradients of one step; calls `change` with each
    layer's MLP, a Scaled, before the backward."""
    model.zero_grad()
    loss = model(**batch()).loss
    for layer in model.model.layers:
        change(layer.mlp)
    loss.backward()
    return Run(loss.item(), {name: p.grad for name, p in
                             model.named_parameters()})


def set_scale(mlp):
    mlp.scale = 3.0


def set_entry(mlp):
    mlp.on["a"] = 3.0


def choose_another(mlp):
    mlp.on["b"] = 5.0
    mlp.chosen = ["b"]


def replace_buffer(mlp):
    mlp.times = torch.tensor(3.0)


@pytest.mark.parametrize("change", [set_scale, set_entry, choose_another,
                                    replace_buffer])
def test_replays_use_the_attributes_of_the_forward(session, change):
    model = scaled()
    expected = gradients(copy.deepcopy(model), change)
    stream = sluice.stream(model, session=session, chunk=16, check="always",
                           quiet=True)
    assert_same(gradients(model, change), expected)
    mlp = model.model.layers[0].mlp
    changed = Scaled(nn.Identity())
    change(changed)
    assert (mlp.scale, mlp.on, mlp.chosen, mlp.times) == (
        changed.scale, changed.on, changed.chosen, changed.times)
    stream.unstream()


def add_hook(mlp):
    mlp.register_forward_hook(lambda module, args, y: 3 * y)


def add_hook_before(mlp):
    mlp.inner.down_proj.register_forward_pre_hook(
        lambda module, args: (3 * args[0],))


def add_backward_hook(mlp):
    mlp.inner.register_full_backward_hook(
        lambda module, grads, _: tuple(3 * g for g in grads))


def remove_hook(mlp):
    mlp.handle.remove()


def replace_module(mlp):
    torch.manual_seed(1)
    mlp.inner.down_proj = nn.Linear(48, 32, bias=False)


def add_module(mlp):
    mlp.inner.down_proj = Scaled(mlp.inner.down_proj)
    mlp.inner.down_proj.scale = 3.0


@pytest.mark.parametrize("change", [
    add_hook, deep(add_hook_before), add_backward_hook, remove_hook,
    replace_module, deep(add_module)])
def test_replays_use_the_modules_and_hooks_of_the_forward(session, change):
    """Covers check="off", and a second step in which some products are
    skipped."""
    def prepared():
        model = scaled()
        for layer in model.model.layers:
            layer.mlp.handle = layer.mlp.register_forward_hook(
                lambda module, args, y: y + 0.1 * y * y)
        return model

    plain, model = prepared(), prepared()
    stream = sluice.stream(model, session=session, chunk=16, check="off",
                           quiet=True)
    for _ in range(2):
        expected, got = gradients(plain, change), gradients(model, change)
        assert_same(got, expected)
    mlp = model.model.layers[0].mlp
    assert len(mlp._forward_hooks) == len(
        plain.model.layers[0].mlp._forward_hooks)
    assert type(mlp.inner.down_proj) is type(
        plain.model.layers[0].mlp.inner.down_proj)
    stream.unstream()


def test_replays_use_the_global_hooks_of_the_forward(session):
    model = tiny()
    expected = unstreamed(model, batch())
    stream = sluice.stream(model, session=session, chunk=16, check="off",
                           quiet=True)
    loss = model(**batch()).loss
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, y: 3 * y if isinstance(module, nn.Linear) else y)
    loss.backward()
    handle.remove()
    assert not nn.modules.module._global_forward_hooks
    assert_same(Run(loss.item(), {name: p.grad for name, p in
                                  model.named_parameters()}), expected)
    stream.unstream()


def test_adapters_added_before_a_backward_change_nothing(session):
    def step(model):
        torch.manual_seed(0)
        loss = model(**batch()).loss
        get_peft_model(model, LoraConfig(
            r=4, target_modules=["o_proj", "down_proj"],
            init_lora_weights=False))
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        loss.backward()
        return Run(loss.item(), {name: p.grad for name, p in
                                 model.named_parameters()})

    model = tiny()
    expected = step(copy.deepcopy(model))
    stream = sluice.stream(model, session=session, chunk=16, check="off",
                           quiet=True)
    assert_same(step(model), expected)
    assert_same(run(model, batch()), unstreamed_twin(model))
    stream.unstream()


def unstreamed_twin(model):
    """Runs a copy of the model without the forwards that stream() has set."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        vars(module).pop("forward", None)
    return run(twin, batch())


def another_class(mlp):
    class Negative(Scaled):
        def forward(self, x):
            return -super().forward(x)
    mlp.__class__ = Negative


def another_forward(mlp):
    mlp.inner.forward = lambda x: -x


@pytest.mark.parametrize("change", [another_class, another_forward])
def test_a_replaced_forward_of_a_module_is_named(session, change):
    model = scaled()
    stream = sluice.stream(model, session=session, chunk=16, check="off",
                           quiet=True)
    with pytest.raises(RuntimeError, match="'forward' of .* was changed"):
        gradients(model, change)
    assert stream.stats().host_bytes == 0
    stream.unstream()


FACTOR = [1.0]


class Elsewhere(Wrapper):
    """Reads a global, a class attribute, a config and a tensor."""

    factor = 1.0

    def __init__(self, inner):
        super().__init__(inner)
        self.config = SimpleNamespace(factor=1.0)
        self.tensor = torch.ones(())

    def forward(self, x):
        return self.inner(x) * (FACTOR[0] * type(self).factor
                                * self.config.factor * self.tensor)


def change_global(mlp, factor):
    FACTOR[0] = factor


def change_class(mlp, factor):
    type(mlp).factor = factor


def change_config(mlp, factor):
    mlp.config.factor = factor


def change_tensor(mlp, factor):
    mlp.tensor.fill_(factor)


def replace_config(mlp, factor):
    mlp.config = SimpleNamespace(factor=factor)


@pytest.mark.parametrize("change, named", [
    (change_global, r"'FACTOR' of the file .* was \[1.0\], and is \[-1.0\]"),
    (change_class, r"'factor' of the class Elsewhere was 1.0, and is -1.0"),
    (change_config, r"'factor' of SimpleNamespace was 1.0, and is -1.0"),
    (replace_config, r"'factor' of SimpleNamespace was 1.0, and is gone"),
    (change_tensor, r"the tensor 'tensor' of Elsewhere was version")])
def test_a_change_of_other_state_is_named_in_each_step(session, change, named):
    model = wrap_mlps(Elsewhere)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    mlps = [layer.mlp for layer in model.model.layers]
    for _ in range(3):
        model(**batch())  # has no backward, so nothing is checked
        loss = model(**batch()).loss
        for mlp in mlps:
            change(mlp, -1.0)
        with pytest.raises(RuntimeError, match="computed other values in .* "
                           "than in its first: " + named):
            loss.backward()
        for mlp in mlps:
            change(mlp, 1.0)
        run(model, batch())
    stream.unstream()


@pytest.mark.parametrize("change", [
    lambda y: -y, lambda y: y.flip(0), lambda y: y.flip(1),
    lambda y: y.roll(1, 1), lambda y: y.flip(2),
    lambda y: y * torch.tensor([-1.0, -1, 1, 1]).repeat(2)])
def test_a_fingerprint_depends_on_the_order_of_values(change):
    y = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    for dtype in torch.float32, torch.bfloat16:
        assert fingerprint(y.to(dtype)) == fingerprint(y.to(dtype).clone())
        assert fingerprint(y.to(dtype)) != fingerprint(change(y).to(dtype))


def test_a_buffer_is_summed_once_per_version(monkeypatch):
    summed, buffer = [], torch.ones(3)
    monkeypatch.setattr(setting, "fingerprint", lambda values: summed.append(
        values) or len(summed))
    assert [setting._sum(buffer), setting._sum(buffer)] == [1, 1]
    buffer.add_(1)
    assert [setting._sum(buffer), setting._sum(buffer)] == [2, 2]


def test_an_error_says_if_the_change_was_not_found(session):
    factor = [1.0]  # a cell of a closure
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(
            lambda module, args, y: y * factor[0])
    loss = model(**batch()).loss
    factor[0] = -1.0
    with pytest.raises(RuntimeError, match="no tensor, config, class or file "
                       "of its modules has changed"):
        loss.backward()
    stream.unstream()


def write_buffer(mlp):
    mlp.times.mul_(3)


def replace_memory(mlp):
    weight = mlp.inner.up_proj.weight
    weight.data = weight.data * 3


@pytest.mark.parametrize("change, name", [
    (write_buffer, r"'times' of Scaled"),
    (replace_memory, r"'weight' of Linear")])
def test_changed_buffers_and_weights_are_detected(session, change, name):
    model = scaled()
    stream = sluice.stream(model, session=session, chunk=16, check="off",
                           quiet=True)
    with pytest.raises(RuntimeError, match=name + " was changed in place, or "
                       r"replaced, between forward and backward \(in mlp.* of "
                       "LlamaDecoderLayer"):
        gradients(model, change)
    assert stream.stats().host_bytes == 0
    stream.unstream()


def test_a_buffer_rewritten_with_the_same_values_is_unchanged(session):
    """DDP writes buffers like this before each forward."""
    def write(mlp):
        mlp.times.copy_(mlp.times.clone())

    model = scaled()
    expected = gradients(copy.deepcopy(model), lambda mlp: None)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(gradients(model, write), expected)
    stream.unstream()


def test_the_same_values_in_another_order_are_a_change(session):
    def reverse(mlp):
        mlp.times.copy_(mlp.times.flip(0))

    model = scaled()
    for layer in model.model.layers:
        layer.mlp.times = torch.linspace(0.5, 1.5, 32)
    sluice.stream(model, session=session, chunk=16, check="off", quiet=True)
    with pytest.raises(RuntimeError, match="'times' of Scaled was changed"):
        gradients(model, reverse)


def freeze_others(model):
    """Changes which of two parameters of the same shape is trained."""
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj.weight.requires_grad_(True)
        attention.o_proj.weight.requires_grad_(False)


def test_gradients_go_to_the_parameters_trained_in_the_forward(session):
    """q is frozen in the forward and trained only afterwards, so it gets no
    gradient."""
    def step(model):
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.requires_grad_(False)
        loss = model(**batch()).loss
        freeze_others(model)
        loss.backward()
        return Run(loss.item(), {name: p.grad for name, p in
                                 model.named_parameters()})

    model = tiny(**SQUARE)
    expected = step(copy.deepcopy(model))
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    got = step(model)
    assert got.gradients["model.layers.0.self_attn.q_proj.weight"] is None
    assert_same(got, expected)
    stream.unstream()


def test_a_backward_uses_its_forwards_adapter(session):
    def step(model):
        model.set_adapter("a")
        first = model(**batch()).loss
        model.set_adapter("b")
        second = model(**batch()).loss
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora" in name)
        (first + 2 * second).backward()
        return Run(first.item(), {name: p.grad for name, p in
                                  model.named_parameters()})

    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_dropout=0.0, target_modules=[
        "q_proj", "up_proj"], init_lora_weights=False)
    model = get_peft_model(tiny(), config, adapter_name="a")
    model.add_adapter("b", config)
    expected = step(copy.deepcopy(model))
    stream = sluice.stream(model, session=session, chunk=16, check="always",
                           quiet=True)
    got = step(model)
    assert sum(g is not None for g in got.gradients.values()) == 16
    assert_same(got, expected)
    stream.unstream()


def on_parameters(*more):
    """Returns a model with adapters on parameters, which PEFT adds as
    parametrizations in each forward."""
    torch.manual_seed(0)
    return get_peft_model(tiny("mixtral", num_local_experts=4), LoraConfig(
        r=4, target_modules=["q_proj"], target_parameters=[
            "mlp.experts.gate_up_proj", "mlp.experts.down_proj", *more],
        init_lora_weights=False)).train()


def test_adapters_on_parameters_are_exact(session):
    """Runs two forwards, a generation and one backward of both losses, then the
    same with all parameters trained."""
    def steps(model):
        model.zero_grad()
        first, second = (model(**batch(seed=seed)).loss for seed in (1, 2))
        model.generate(batch()["input_ids"][:, :9], max_new_tokens=2)
        (first + 2 * second).backward()
        return Run(first.item(), {name: p.grad for name, p in
                                  model.named_parameters()})

    model = on_parameters("lm_head.weight")
    twin = copy.deepcopy(model)
    stream = sluice.stream(model, session=session, chunk=16, check="always",
                           quiet=True)
    for _ in range(2):
        assert_same(steps(model), steps(twin))
        for parameter in (*model.parameters(), *twin.parameters()):
            parameter.requires_grad_(True)
    assert list(model.state_dict()) == list(twin.state_dict())
    stream.unstream()


@pytest.mark.parametrize("change", [
    lambda w: w.add_(1e-3), lambda w: w.neg_(), lambda w: w.copy_(w.flip(1)),
    lambda w: w.view(-1)[:2].copy_(w.view(-1)[:2].flip(0).clone())])
def test_changed_weights_under_adapters_on_parameters_are_detected(
        session, change):
    model = on_parameters()
    layer = model.get_base_model().model.layers[1]
    weight = layer.mlp.experts.get_base_layer().gate_up_proj
    stream = sluice.stream(model, session=session, chunk=16, check="off",
                           quiet=True)
    loss = model(**batch()).loss
    with torch.no_grad():
        change(weight)
    with pytest.raises(RuntimeError, match="'gate_up_proj' of MixtralExperts"):
        loss.backward()
    stream.unstream()


def test_a_whole_layer_with_more_outputs_in_backward_is_named(
        session, monkeypatch):
    model = configs.tiny("bloom")  # its layers run whole
    kind, more = type(model.transformer.h[0]), []
    own = kind.forward

    def forward(self, *args, **kwargs):
        out = own(self, *args, **kwargs)
        if not more:
            return out
        return (*(out if isinstance(out, tuple) else (out,)), *more)

    monkeypatch.setattr(kind, "forward", forward)
    sluice.stream(model, session=session, chunk=16, quiet=True)
    loss = model(**batch()).loss
    more.append(torch.ones(1))
    with pytest.raises(RuntimeError, match="of BloomBlock computed other"):
        loss.backward()
