"""Models with heads other than a language model's, and their inputs."""

from __future__ import annotations

import torch
import transformers
from models import SIZES, Run, batch
from torch import nn


def tiny_with(head: str, dropout: float = 0.0) -> nn.Module:
    """Returns a Llama with a head of transformers, e.g.
    "SequenceClassification"."""
    torch.manual_seed(0)
    return getattr(transformers, f"AutoModelFor{head}").from_config(
        transformers.LlamaConfig(**SIZES, num_labels=3,
                                 classifier_dropout=dropout),
        attn_implementation="eager").train()


def padded() -> dict[str, torch.Tensor]:
    mask = torch.ones(2, 75, dtype=torch.long)
    mask[0, 70:] = mask[1, 20:] = 0
    ids = batch()["input_ids"] * mask  # 0 is the padding token
    return {"input_ids": ids, "attention_mask": mask}


def padded_left() -> dict[str, torch.Tensor]:
    return {name: t.flip(1) for name, t in padded().items()}


CLASSES = {"labels": torch.tensor([0, 2])}
# name -> (head, arguments of the call)
HEADS = {
    "a classifier": ("SequenceClassification", {**padded(), **CLASSES}),
    "a classifier, padding on the left": (
        "SequenceClassification", {**padded_left(), **CLASSES}),
    "a classifier without labels": ("SequenceClassification", padded()),
    # Rows of padding have no label.
    "a class for each token, padding on the left": ("TokenClassification", {
        **padded_left(), "labels": (batch()["input_ids"] % 3).where(
            padded_left()["attention_mask"].bool(), torch.tensor(-100))}),
    "a class for each token": ("TokenClassification", {
        **padded(), "labels": batch()["input_ids"] % 3}),
    "an answer that begins and ends": ("QuestionAnswering", {
        **padded(), "start_positions": torch.tensor([3, 9]),
        "end_positions": torch.tensor([60, 12])}),
}


def graded(model: nn.Module, inputs: dict) -> Run:
    """Returns the Run of the model's loss or, if it has none, of its scores.
    """
    model.zero_grad()
    out = model(**inputs)
    weights = torch.tensor([0.5, -1.0, 2.0])
    loss = (out.logits * weights).sum() if out.loss is None else out.loss
    loss.backward()
    return Run(loss.item(), {n: p.grad.clone()
                             for n, p in model.named_parameters()})
