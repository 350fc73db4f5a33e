"""Hooks, modules and heads added after stream() are probed, too. They are
exact, or the next call refuses them by name."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.distributed as dist
from group_layers import graded
from models import Run, assert_same, batch, run, tiny
from support import deep
from titan import titan, tokens
from torch import nn
from torch.distributed.fsdp import fully_shard

import sluice

LONG = dict(rows=1, length=700)  # more rows than a chunk of the head has


@pytest.fixture
def stream(session):
    made = []

    def start(model, chunk=16, **settings):
        made.append(sluice.stream(model, session=session, chunk=chunk,
                                  quiet=True, **settings))
        return made[-1]

    yield start
    for each in made:
        each.unstream()


def normalise(module, grads, _):
    return tuple(None if g is None else g / (g.norm() + 1e-3) for g in grads)


def in_tensors(module, args, y):
    if y.requires_grad:
        y.register_hook(lambda g: g / (g.norm() + 1e-3))


def mix(module, args, y):
    return y / (y.std() + 1)


HOOKS = [lambda m: m.register_forward_hook(mix),
         lambda m: m.register_forward_hook(in_tensors),
         lambda m: m.register_full_backward_hook(normalise)]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_in_a_layer_that_mixes_rows_is_refused(stream, hook):
    model = tiny()
    expected = run(model, batch())
    made = stream(model)
    assert_same(run(model, batch()), expected)
    handle = hook(model.model.layers[1].mlp)
    for _ in range(2):
        with pytest.raises(sluice.Unsupported, match=r"layer 1"):
            run(model, batch())
    handle.remove()
    assert_same(run(model, batch()), expected)
    assert made.stats().steps == 2 and made.stats().host_bytes == 0


def test_a_hook_that_does_not_mix_rows_is_exact(stream):
    plain, model = tiny(), tiny()
    made = stream(model)
    run(model, batch())
    for each in plain, model:
        each.model.layers[0].mlp.register_full_backward_hook(
            lambda module, grads, _: tuple(2 * g for g in grads))
    expected = run(plain, batch())
    for _ in range(3):
        assert_same(run(model, batch()), expected)
    assert made.stats().steps == 4


class Wrapped(nn.Module):
    def __init__(self, inner, change):
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x):
        return self.change(self.inner(x))


class Squared(nn.Linear):
    """Squares its product, so its backward reads the product. Has the
    attributes of nn.Linear."""

    def forward(self, x):
        y = super().forward(x)
        return y * y


def squared(layer):
    made = Squared(layer.in_features, layer.out_features, bias=False)
    made.weight = layer.weight
    return made


def test_a_module_in_a_layer_that_mixes_rows_is_refused(stream):
    model = tiny()
    stream(model)
    run(model, batch())
    for layer in model.model.layers:
        layer.mlp = Wrapped(layer.mlp, lambda y: y / (y.std() + 1))
    with pytest.raises(sluice.Unsupported, match="mixes tokens"):
        run(model, batch())


def test_products_of_a_new_module_are_computed(stream):
    """Replays skip products of the module that is replaced. They must compute
    the products of the new module."""
    model, plain = tiny(), tiny()
    stream(model)
    for _ in range(2):
        run(model, batch())
    for each in model, plain:
        for layer in each.model.layers:
            layer.mlp.down_proj = squared(layer.mlp.down_proj)
    expected = run(plain, batch())
    for _ in range(3):
        assert_same(run(model, batch()), expected)


def of_the_head(model):
    return model.lm_head


def of_the_norm(model):
    return model.model.norm


def of_the_embedding(model):
    return model.model.embed_tokens


@pytest.mark.parametrize("place, hook", [
    *((of_the_head, hook) for hook in HOOKS), (of_the_norm, HOOKS[0]),
    (of_the_embedding, HOOKS[2]), deep(of_the_norm, HOOKS[1]),
    deep(of_the_norm, HOOKS[2]), deep(of_the_embedding, HOOKS[0]),
    deep(of_the_embedding, HOOKS[1])])
def test_hooks_outside_the_layers_see_all_rows(stream, place, hook):
    model, plain = tiny(), tiny()
    inputs, before = batch(**LONG), run(plain, batch(**LONG))
    made = stream(model, chunk=128)
    run(model, inputs)
    handles = [hook(place(each)) for each in (model, plain)]
    expected = run(plain, inputs)
    for _ in range(2):
        assert_same(run(model, inputs), expected)
    for handle in handles:
        handle.remove()
    assert_same(run(model, inputs), before)
    assert made.head == "rows"


def test_a_head_set_to_whole_stays_whole(stream):
    model = tiny()
    made = stream(model)
    made.head = "whole"
    model.lm_head.register_forward_hook(lambda module, args, y: 2 * y)
    logits = model(**batch()).logits
    assert made.head == "whole" and bool(logits.isfinite().all())
    made.head = "rows"
    assert_same(run(model, batch()), run(copy.deepcopy(model), batch()))


def test_another_head_is_exact(stream):
    model, plain = tiny(), tiny()
    made = stream(model, chunk=128)
    run(model, batch(**LONG))
    for each in model, plain:
        each.lm_head = nn.Sequential(each.lm_head, nn.Tanh())
    assert_same(run(model, batch(**LONG)), run(plain, batch(**LONG)))
    assert made.stats().steps == 2


def test_a_new_probe_changes_no_random_state_and_no_gradient(stream):
    model = tiny()
    stream(model)
    first = run(model, batch())
    model.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    torch.manual_seed(5)
    loss = model(**batch()).loss
    drawn = torch.rand(3)
    loss.backward()  # adds to the gradients of `first`
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    assert_same(Run(loss.item(), {n: p.grad / 2 for n, p in
                                  model.named_parameters()}), first)


@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("hidden", ["device", "host"])
def test_custom_layers_are_probed_again(session, sample, hidden):
    if hidden == "host" and not sample:
        pytest.skip('hidden="host" needs a sample')
    model = titan()
    plain = copy.deepcopy(model)
    expected = graded(plain, tokens())
    stream = sluice.stream(
        layers=model.layers, attention="sdpa", session=session, chunk=16,
        rows={"freqs_cis": 0}, quiet=True, hidden=hidden,
        sample=(lambda: model(tokens())) if sample else None)
    try:
        assert_same(graded(model, tokens()), expected)
        handles = [each.layers["1"].feed_forward.register_forward_hook(mix)
                   for each in (plain, model)]
        mixed = graded(plain, tokens())
        for _ in range(2):
            assert_same(graded(model, tokens()), mixed)
        assert [count for _, count in stream.whole] == [1]
        for handle in handles:
            handle.remove()
        assert_same(graded(model, tokens()), expected)
        assert not stream.whole
        gc.collect()
        assert stream.stats().host_bytes == 0
    finally:
        stream.unstream()


@pytest.mark.parametrize("hook", [HOOKS[0], lambda m: m.register_forward_hook(
    lambda module, args, y: 2 * y)], ids=["mixing", "by rows"])
def test_a_hook_in_a_sharded_layer_is_refused_or_exact(session, tmp_path,
                                                       hook):
    """FSDP2's own hooks do not count as a change."""
    dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0,
                            world_size=1)
    try:
        model, plain = tiny(), tiny()
        stream = sluice.stream(model, session=session, chunk=16, quiet=True)
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model.lm_head)
        fully_shard(model)
        model(**batch()).loss.backward()
        assert stream.head == "rows"
        for each in model, plain:
            hook(each.model.layers[0].mlp)
        if hook is HOOKS[0]:
            with pytest.raises(sluice.Unsupported, match="mixes tokens"):
                model(**batch())
        else:
            wanted = plain(**batch()).loss
            for _ in range(2):
                found = model(**batch()).loss
                assert abs(float(found - wanted)) <= 1e-5 * float(wanted)
        stream.unstream()
    finally:
        dist.destroy_process_group()


def mean_loss(source, target, *args, **kwargs):
    kept = target != -100
    return torch.logsumexp(source, -1)[kept].mean() - source[kept].gather(
        1, target[kept][:, None]).mean()


@pytest.mark.parametrize("place", [
    "torch.nn.functional.cross_entropy",
    "transformers.loss.loss_utils.fixed_cross_entropy"])
def test_a_loss_replaced_by_a_mean_over_rows_is_exact(
        stream, monkeypatch, place):
    """In chunks the loss would be a sum of means."""
    model, inputs = tiny(), batch(**LONG)
    made = stream(model)
    run(model, inputs)
    monkeypatch.setattr(place, mean_loss)
    expected = run(tiny(), inputs)
    assert_same(run(model, inputs), expected)
    assert made.head == "rows"  # by rows again once the loss is a sum


def test_a_loss_that_later_adds_a_mean_over_rows_is_exact(stream):
    """A value that the loss function reads decides whether it does."""
    share = []

    def loss(logits, labels, vocab_size, shift_labels=None,
             num_items_in_batch=None, **_):
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        count = num_items_in_batch or (shift_labels != -100).sum()
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), shift_labels.flatten(), reduction="sum")
        return total / count + sum(
            one * logits.logsumexp(-1).square().mean() for one in share)

    models = [tiny(), tiny()]
    for model in models:
        model.loss_function = loss
    made = stream(models[0])
    for shares in [], [0.1], [1e-4], []:
        share[:] = shares
        assert_same(*(run(model, batch(**LONG)) for model in models))
    assert made.head == "rows"


def test_a_loss_that_counts_its_calls_is_called_once_per_later_step(stream):
    """A trial in each step would move its schedule."""
    model, calls = tiny(), []

    def loss(logits, labels=None, vocab_size=None, shift_labels=None, **_):
        calls.append(1)
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return nn.functional.cross_entropy(logits.flatten(
            0, 1), shift_labels.flatten()) * len(calls)

    model.loss_function = loss
    stream(model)
    run(model, batch(**LONG))
    for _ in range(2):
        calls[:] = [1] * 9
        run(model, batch(**LONG))
        assert len(calls) == 10


def test_attention_that_becomes_bidirectional_is_refused(stream):
    model = tiny()
    model.set_attn_implementation("sdpa")
    stream(model)
    run(model, batch())
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(sluice.Unsupported, match=r"layer 0 .*mixes tokens"):
        run(model, batch())


def test_an_embedding_that_counts_tokens_from_now_on_is_exact(stream):
    """Its gradient is divided by a token's frequency in all rows."""
    models = [tiny(), tiny()]
    stream(models[0])
    run(models[0], batch())
    for model in models:
        model.model.embed_tokens.scale_grad_by_freq = True
    assert_same(*(run(model, batch()) for model in models))


def test_a_layer_that_would_now_run_whole_is_refused_with_a_remedy(stream):
    model = tiny()
    stream(model)
    for layer in model.model.layers:
        nn.utils.parametrizations.spectral_norm(layer.mlp.up_proj)
    plain = copy.deepcopy(model)
    with pytest.raises(sluice.Unsupported, match="unstream.* may run whole"):
        run(model, batch())
    stream(model)
    assert_same(run(model, batch()), run(plain, batch()))
