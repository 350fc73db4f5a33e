"""Tests evaluation of a streamed model in Trainer, and uses of logits, which
are computed when they are read."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from loops import rows, settings, tokenizer
from models import VOCAB, Run, assert_same, batch, run, tiny, unstreamed
from support import deep
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import sluice

warnings.filterwarnings("ignore", category=FutureWarning)


class Largest(TorchDispatchMode):
    """Records the most elements of any logits tensor that torch computes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if type(leaf) is torch.Tensor and leaf.shape[-1:] == (VOCAB,):
                self.elements = max(self.elements, leaf.numel())
        return out


def evaluate(model, lengths=(300, 290), **options):
    """Returns Trainer's metrics for two rows in one batch."""
    args = TrainingArguments(**settings(per_device_eval_batch_size=2))
    return Trainer(model=model, args=args, data_collator=(
        DataCollatorForSeq2Seq(tokenizer())), **options).evaluate(
            rows(lengths, labels=True))


def accuracy(predictions):
    logits, labels = predictions
    seen = labels[:, 1:] != -100
    hit = (logits if logits.ndim == 2 else logits.argmax(-1))[:, :-1]
    return {"accuracy": float((hit == labels[:, 1:])[seen].mean())}




def streamed(session, **options):
    model = tiny()
    return model, sluice.stream(model, session=session, chunk=64, quiet=True,
                                **options)


def test_evaluation_by_loss_is_streamed_and_makes_no_logits(session):
    with Largest() as largest:
        expected = evaluate(tiny())["eval_loss"]
    assert largest.elements == 2 * 300 * VOCAB
    model, stream = streamed(session)
    with Largest() as largest:
        found = evaluate(model)["eval_loss"]
    assert abs(found - expected) <= 1e-5 * expected
    assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0
    assert largest.elements < 2 * 300 * VOCAB


@pytest.mark.parametrize("options", [
    {}, {"preprocess_logits_for_metrics": lambda x, _: x.argmax(-1)}])
def test_metrics_are_those_of_the_model_itself(session, options):
    expected = evaluate(tiny(), compute_metrics=accuracy, **options)
    model, stream = streamed(session)
    for head in "rows", "whole":
        stream.head = head
        found = evaluate(model, compute_metrics=accuracy, **options)
        assert found["eval_accuracy"] == expected["eval_accuracy"]
        assert stream.stats().host_bytes == 0
    assert_same(run(model, batch()), unstreamed(tiny(), batch()))


USES = {
    "argmax": lambda x: x.argmax(-1), "detach": lambda x: x.detach(),
    "add": lambda x: x + 1, "slice": lambda x: x[:, :-1],
    "numpy": lambda x: x.detach().numpy(), "array": lambda x: np.asarray(
        x.detach()), "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "tolist": lambda x: x.tolist(), "cast": lambda x: x.double().square(),
    "dlpack": lambda x: torch.from_dlpack(x.detach()),
    "in place": lambda x: x.div_(2), "list": lambda x: torch.stack(list(x)),
    "copy": lambda x: x.clone().sum(), "out": lambda x: torch.add(
        x.detach(), 1, out=torch.empty_like(x.detach())),
    "repr": lambda x: repr(x.detach())[:9],
    "before in place": lambda x: (x.clone(), x.zero_(), x.double())[0] + 0,
}


@pytest.fixture(scope="module")
def read():
    """Returns a streamed and a plain model for tests that read logits."""
    model = tiny()
    stream = sluice.stream(model, chunk=64, quiet=True)
    yield model, tiny()
    stream.unstream()


@pytest.mark.parametrize("use", USES)
def test_logits_are_made_when_they_are_read(read, use):
    (model, plain), inputs = read, batch(length=300)
    for context in torch.enable_grad, torch.no_grad, torch.inference_mode:
        with context(), Largest() as largest:
            out = model(**inputs)
            loss, logits = out[:2]
            assert logits.shape == (2, 300, VOCAB)
            assert logits.requires_grad == (context is torch.enable_grad)
            assert largest.elements < 2 * 300 * VOCAB
        with context():
            expected = plain(**inputs).logits
            assert_close(USES[use](logits), USES[use](expected))
    assert torch.equal(loss, model(**inputs).loss)


def assert_close(found, expected):
    if isinstance(found, torch.Tensor):
        assert found.requires_grad == expected.requires_grad
        found, expected = found.detach(), expected.detach()
    if not isinstance(found, str):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Square(torch.autograd.Function):
    """A custom autograd function, to which torch applies no overrides
    (__torch_function__)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean()

    @staticmethod
    def backward(ctx, dy):
        return dy * 2 * ctx.saved_tensors[0] / ctx.saved_tensors[0].numel()


LOSSES = {
    "of logits": lambda out, labels: nn.functional.cross_entropy(
        out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()),
    "of loss and logits": lambda out, _: out.loss + out.logits.square().mean(),
    "in place": lambda out, _: out.logits.div_(3).square().mean(),
    "of a copy": lambda out, _: (
        out.logits.clone() * out.logits.double()).mean(),
    "of a function": lambda out, _: Square.apply(out.logits),
    "weighted sum": lambda out, _: (
        out.logits * torch.linspace(0, 1, VOCAB)).sum() / 100,
}


OTHERS = ("gemma2", {"sliding_window": 20}), ("gpt_neox", {"head_dim": None})


@pytest.mark.parametrize("name, kind, changes", [
    *((name, "llama", {}) for name in LOSSES),
    *(("of loss and logits", *other) for other in OTHERS),
    *(deep(name, *other) for name in LOSSES for other in OTHERS
      if name != "of loss and logits")])
def test_losses_of_logits_have_the_plain_gradients(session, name, kind,
                                                   changes):
    model = tiny(kind, **{k: v for k, v in changes.items() if v})
    plain, made = copy.deepcopy(model), []
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    for each in plain, model, model:
        each.zero_grad()
        loss = LOSSES[name](each(**batch()), batch()["labels"])
        loss.backward()
        made.append(Run(loss.item(), {n: p.grad.clone() for n, p in
                                      each.named_parameters()}))
    assert_same(made[1], made[0])
    assert_same(made[2], made[0])
    assert stream.stats().host_bytes == 0 and stream.head == "rows"


@pytest.mark.parametrize("name, options", [
    ("after backward", {}), ("after weights", {}),
    ("hidden=\"host\"", {"hidden": "host"})])
def test_logits_that_cannot_be_made_any_more_are_refused(session, name,
                                                         options):
    model, _ = streamed(session, **options)
    logits = model(**batch()).logits
    if name == "after backward":
        loss, logits = model(**batch())[:2]
        loss.backward()
    else:
        with torch.no_grad():
            model.lm_head.weight.mul_(2)
    with pytest.raises(sluice.Unsupported, match=f"{name}.*head = 'whole'"):
        logits.argmax(-1)


@pytest.mark.parametrize("hook", [
    lambda logits: logits.register_hook(lambda g: g / 2),
    lambda logits: logits.retain_grad()])
def test_hooks_on_logits_that_the_loss_does_not_read_are_refused(session, hook):
    model, stream = streamed(session)
    with pytest.raises(sluice.Unsupported, match="hook|retain_grad.*head = "):
        hook(model(**batch()).logits)
    stream.head = "whole"
    hook(model(**batch()).logits)


def test_logits_read_under_autocast_leave_later_forwards_their_gradients(
        session):
    model, _ = streamed(session)
    with torch.autocast("cpu", torch.bfloat16):
        model(**batch()).logits.sum()
        model(batch()["input_ids"], logits_to_keep=40).logits.sum().backward()
    assert model.lm_head.weight.grad.any()


def test_mixed_precision_loops_do_not_compute_logits(session):
    """accelerate converts a model's outputs to fp32. This must not compute the
    logits."""
    model, stream = streamed(session)
    args = TrainingArguments(**settings(max_steps=2, bf16=True))
    with Largest() as largest:
        Trainer(model=model, args=args, train_dataset=rows(
            (300, 290, 310, 280), labels=True), data_collator=(
                DataCollatorForSeq2Seq(tokenizer()))).train()
    assert stream.stats().blocks > 0
    assert largest.elements < 2 * 290 * VOCAB
