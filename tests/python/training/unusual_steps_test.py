"""Unusual steps of user code have the plain model's results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from models import Run, assert_same, batch, run, tiny, unstreamed
from torch import nn
from torch.utils.data import DataLoader, Dataset

import sluice


def graded(model: nn.Module, loss: float) -> Run:
    return Run(loss, {n: None if p.grad is None else p.grad.clone()
                      for n, p in model.named_parameters()})


def lengths_that_differ(model):
    """Some batches are shorter than a chunk. The last batch has two tokens per
    row."""
    total = 0.0
    for length in (75, 9, 40, 16, 120, 2):
        ids = batch(2, length, seed=length)["input_ids"]
        loss = model(input_ids=ids, labels=ids).loss / 6
        loss.backward()
        total += loss.item()
    return graded(model, total)


def evaluation_before_two_backwards(model):
    first = model(**batch()).loss
    model.eval()
    with torch.no_grad():
        model(**batch(seed=9))
        model.generate(batch()["input_ids"][:, :5], max_new_tokens=3)
    model.train()
    second = model(**batch(seed=3)).loss
    second.backward()
    first.backward()
    return graded(model, first.item() + second.item())


def a_backward_that_fails(model):
    told = []

    def fail(*_):
        if told:
            raise ValueError("told to")

    hook = model.model.layers[1].self_attn.q_proj.register_full_backward_hook(
        fail)
    loss = model(**batch()).loss
    told.append(True)
    with pytest.raises(ValueError, match="told to"):
        loss.backward()
    hook.remove()
    return run(model, batch())


def what_trains_changes(model):
    for part in ("layers.1", "lm_head", "embed", "layers.0.mlp", "norm", ""):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(part in name)
        loss = model(**batch()).loss
        loss.backward()
    return graded(model, loss.item())


def a_search_for_nan(model):
    with torch.autograd.set_detect_anomaly(True):
        return run(model, batch())


def a_forward_without_gradients(model):
    with torch.no_grad():
        model(**batch(seed=5))
    return run(model, batch())


class Texts(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return batch(1, 30 + i, seed=i)["input_ids"][0]


def workers_of_a_loader(model):
    """The loader forks its workers while memory is leased."""
    total = 0.0
    for ids in DataLoader(Texts(), num_workers=2, persistent_workers=True):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        total += loss.item()
    return graded(model, total)


STEPS: list[Callable] = [
    lengths_that_differ, evaluation_before_two_backwards,
    a_backward_that_fails, what_trains_changes, a_forward_without_gradients,
    a_search_for_nan, workers_of_a_loader]


@pytest.mark.parametrize("hidden", ["device", "host"])
@pytest.mark.parametrize("steps", STEPS, ids=lambda f: f.__name__)
def test_gradients_are_the_plain_models(session, steps, hidden):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           hidden=hidden)
    assert_same(steps(model), steps(tiny()))
    assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0


def test_models_of_two_sessions_may_share_a_step(session):
    models = [tiny(), tiny("qwen3"), tiny()]
    with sluice.Session() as other:
        for model, where in zip(models, (session, session, other)):
            sluice.stream(model, session=where, chunk=16, quiet=True)
        losses = [model(**batch(seed=i)).loss
                  for i, model in enumerate(models)]
        sum(losses).backward()
        for i, (model, kind) in enumerate(zip(models, ("llama", "qwen3",
                                                       "llama"))):
            assert_same(graded(model, losses[i].item()),
                        unstreamed(tiny(kind), batch(seed=i)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_is_no_worse_than_the_plain_models(session, dtype):
    def error(model):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with torch.autocast("cpu", dtype=dtype):
            loss = model(**batch()).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        return sum(float((p.grad - exact[n]).norm()) ** 2
                   for n, p in model.named_parameters()) ** 0.5

    exact = unstreamed(tiny(), batch()).gradients
    model = tiny()
    sluice.stream(model, session=session, chunk=16, quiet=True)
    assert error(model) <= 1.1 * error(tiny())
