"""Evaluation of a streamed model in Trainer, by loss and by metrics, and uses
of logits that were not computed."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from loops import rows, settings, tokenizer
from models import VOCAB, assert_same, batch, run, tiny, unstreamed
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import sluice

warnings.filterwarnings("ignore", category=FutureWarning)


class Largest(TorchDispatchMode):
    """The most elements of any logits that were made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if type(leaf) is torch.Tensor and leaf.shape[-1:] == (VOCAB,):
                self.elements = max(self.elements, leaf.numel())
        return out


def evaluate(model, lengths=(300, 290), **options):
    """What Trainer says of two rows in one batch."""
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


def test_metrics_without_logits_are_refused_and_a_whole_head_gives_them(
        session):
    model, stream = streamed(session)
    for options in (
            {}, {"preprocess_logits_for_metrics": lambda x, _: x.argmax(-1)}):
        expected = evaluate(tiny(), compute_metrics=accuracy, **options)
        stream.head = "rows"
        with pytest.raises(sluice.Unsupported, match="logits: they were never "
                           "whole.*head = 'whole'"):
            evaluate(model, compute_metrics=accuracy, **options)
        assert stream.stats().host_bytes == 0
        stream.head = "whole"
        found = evaluate(model, compute_metrics=accuracy, **options)
        assert found["eval_accuracy"] == expected["eval_accuracy"]
    stream.unstream()
    model, stream = streamed(session, head="whole")
    assert_same(run(model, batch()), unstreamed(model, batch()),
                unstreamed(model, batch(), "sdpa"))
    assert model(**batch()).logits.isfinite().all()


@pytest.mark.parametrize("use", [
    lambda x: x.argmax(-1), lambda x: x.detach(), lambda x: x + 1,
    lambda x: x[:, :-1], lambda x: x.numpy(), np.asarray, pickle.dumps,
    lambda x: x.tolist(), lambda x: x.bfloat16(), lambda x: x.__dlpack__(),
    lambda x: torch.nn.functional.cross_entropy(x[0], x[0]),
    lambda x: x.to("meta"), lambda x: list(x),
    lambda x: x.clone().sum()])
def test_using_absent_logits_is_refused(session, use):
    model, _ = streamed(session)
    out = model(**batch())
    loss, logits = out[:2]
    assert logits.shape == (2, 75, VOCAB) and not logits.requires_grad
    with pytest.raises(sluice.Unsupported, match="sluice.logprobs"):
        use(logits)
    loss.backward()


def test_mixed_precision_loops_leave_absent_logits_alone(session):
    """accelerate widens what a model returns in half precision."""
    model, stream = streamed(session)
    args = TrainingArguments(**settings(max_steps=2, bf16=True))
    Trainer(model=model, args=args, train_dataset=rows(labels=True),
            data_collator=DataCollatorForSeq2Seq(tokenizer())).train()
    assert stream.stats().blocks > 0
