"""Judges one name at 8,400 tokens. Finds effects that begin at a late row, or
that need more rows than a probe or a chunk of judge.py has.

Llama 4 scales queries from row 8,192 on; other models change their rotary
embeddings beyond the length that they were trained with. Only the last eighth
of the rows has labels, so that effects in these rows show. The result is
compared with the plain model with SDPA, or with eager attention and
checkpointing if the model has no SDPA. Eager attention without checkpointing
would hold [heads, S, S] several times.
"""

from __future__ import annotations

import copy
import time

import torch

import sluice

from . import compare, configs, exceptions, fields, kinds, plain
from .judge import EXACT, FAILED, REFUSED, UNBUILT, WRONG, Row, one_line

TOKENS, CHUNK = 8400, 1024
POSITIONS = TOKENS + 48
# Limit of a relative difference: sums over so many rows round differently.
LIMIT = 1e-4


def _tiny(name: str) -> torch.nn.Module:
    fields.SIZES.update({field: POSITIONS for field, size in
                         fields.SIZES.items() if size == fields.POSITIONS})
    try:
        return configs.tiny(name, "sdpa")
    except (ValueError, ImportError):
        return configs.tiny(name, "eager")


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(plain.FIRST_TOKEN, plain.LAST_TOKEN, (1, TOKENS),
                        generator=generator)
    labels = ids.clone()
    labels[:, :TOKENS * 7 // 8] = -100
    return ids, labels


def _expected(name: str, model: torch.nn.Module) -> plain.Step:
    model = copy.deepcopy(model)
    if model.config._attn_implementation == "eager" and getattr(
            model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False})
    return plain.step(model, name, *_batch())


def judge(name: str) -> Row:
    """Returns the row of `name`. Never raises."""
    row = Row(name, configs.class_name(name), kinds.kind_of(name))
    began = time.monotonic()
    try:
        row.reason = exceptions.unbuilt(name) or ""
        if row.reason:
            row.verdict = UNBUILT
        else:
            _compare(row, _tiny(name))
    except Exception as error:  # the row contains the exception
        row.verdict = FAILED
        row.reason = one_line(f"{type(error).__name__}: {error}")[:400]
    row.seconds = round(time.monotonic() - began, 2)
    return row


def _compare(row: Row, model: torch.nn.Module) -> None:
    with sluice.Session() as session:
        try:
            stream = sluice.stream(model, session=session, chunk=CHUNK)
        except sluice.Unsupported as refusal:
            row.verdict, row.reason = REFUSED, one_line(refusal)
            return
        try:
            found = plain.step(model, row.name, *_batch())
            row.blocks = stream.stats().blocks
        except sluice.Unsupported as refusal:  # caused by the length
            row.verdict, row.reason = REFUSED, one_line(refusal)
            return
        finally:
            stream.unstream()
    expected = _expected(row.name, model)
    plain.check(expected)
    own = dict.fromkeys(("loss", *expected.gradients),
                        LIMIT / compare.TIMES_OWN)
    worst = compare.worst(expected, own, found)
    row.worst, row.difference, row.ratio = (
        worst.name, worst.difference, worst.ratio)
    row.verdict = WRONG if worst.exceeds() or not row.blocks else EXACT
