"""Runs training loops of transformers and TRL around a tiny model, streamed
and plain, and returns what they log in each step."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import datasets
import torch
import transformers
from models import VOCAB, tiny
from support import DEEP
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast, TrainerCallback

import sluice

# More steps than an epoch of rows() in batches of 2 has.
STEPS = 20 if DEEP else 6

datasets.disable_progress_bars()
datasets.logging.set_verbosity_error()
LENGTHS = (30, 41, 22, 61, 18, 60, 33, 20, 47, 12)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<unk>": 0, "<s>": 1, "</s>": 2,
             **{f"w{i}": i for i in range(3, VOCAB)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>",
        eos_token="</s>", pad_token="<unk>")


def rows(lengths=LENGTHS, labels: bool = False) -> datasets.Dataset:
    """Returns sequences of random ids with different lengths."""
    generator = torch.Generator().manual_seed(5)
    ids = [torch.randint(3, VOCAB, (n,), generator=generator).tolist()
           for n in lengths]
    made = {"input_ids": ids}
    if labels:
        made["labels"] = [[-100] * (n % 7) + one[n % 7:]
                          for n, one in zip(lengths, ids)]
    return datasets.Dataset.from_dict(made)


class Log(TrainerCallback):
    """Records what a loop logs in each step."""

    def __init__(self) -> None:
        self.said: list[dict[str, float]] = []

    def on_log(self, args, state, control, logs=None, **_) -> None:
        self.said.append({k: float(v) for k, v in logs.items()
                          if isinstance(v, (int, float))})


def settings(**more: Any) -> dict[str, Any]:
    """Returns the settings that all loops here share."""
    return dict(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=2,
                max_steps=STEPS, learning_rate=1e-3, logging_steps=1,
                lr_scheduler_type="constant", save_strategy="no",
                report_to=[], use_cpu=True, disable_tqdm=True, bf16=False,
                seed=3) | more


def train(make: Callable[[nn.Module, Log], transformers.Trainer],
          session: sluice.Session | None, model: nn.Module | None = None,
          late: bool = False, **more: Any) -> list[dict[str, float]]:
    """Returns the loop's log, one dictionary per step. With a session the
    model is streamed: before the trainer is made or, with `late`, after."""
    model, log = tiny() if model is None else model, Log()
    options = dict(session=session, chunk=24, quiet=True, **more)
    stream = session and not late and sluice.stream(model, **options)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        trainer = make(model, log)
        if session and late:
            stream = sluice.stream(trainer.model, **options)
        trainer.train()
    if stream:
        stats = stream.stats()
        assert stats.blocks > 0 and stats.host_bytes == 0, stats
        stream.unstream()
    return log.said


def assert_equal_logs(got, expected, digits: float = 1e-5) -> None:
    assert len(got) == len(expected) and "loss" in got[0]
    compared = 0
    for step, (ours, theirs) in enumerate(zip(got, expected)):
        for name in theirs:
            # Rewards are differences of nearly equal values, so they are
            # imprecise. The other figures are durations, rates and work.
            if any(part in name for part in (
                    "runtime", "step_time", "per_second", "flos", "rewards/")):
                continue
            compared += 1
            assert abs(ours[name] - theirs[name]) <= digits * abs(
                theirs[name]), (step, name, ours[name], theirs[name])
    assert compared > 2 * len(got) - 2
