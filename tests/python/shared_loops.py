"""The ranks of parallel/sequence_parallel_trainers_test. They run Trainer's
and TRL's loops on sequences that two ranks share, and write what the loops
log."""

from __future__ import annotations

import copy
import functools
import json
import os
import pathlib
import tempfile

import torch.distributed as dist
from gloo import run_cases
from loops import Log, rows, settings, tokenizer, train
from peft import LoraConfig, get_peft_model
from support import DEEP
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

import sluice

STEPS = 10 if DEEP else 5
# accelerate deals batches of 2 rows to the two ranks before same_rows() joins
# the batches. 12 rows, or 8 rows of 64 tokens if packed, give both ranks the
# same number of batches. Otherwise accelerate would give some rows to both.
LENGTHS = (30, 41, 22, 61, 60, 33, 40, 24, 62, 63, 35, 29)


def _shared(kind):
    """Returns the trainer's class with a loader that gives all ranks the same
    rows."""
    class Shared(kind):
        def get_train_dataloader(self):
            loader = super().get_train_dataloader()
            return sluice.same_rows(loader, dist.group.WORLD) if (
                dist.is_initialized()) else loader
    return Shared


def trainer(adapters=None, **more):
    return lambda model, log: _shared(Trainer)(
        model=get_peft_model(model, adapters) if adapters else model,
        args=TrainingArguments(**settings(**{"max_steps": STEPS, **more})),
        train_dataset=rows(LENGTHS, labels=True), callbacks=[log],
        data_collator=DataCollatorForSeq2Seq(tokenizer()))


def resumed(model, log):
    """Returns a trainer that resumes within an epoch, as a copy of the model
    has trained and saved it."""
    folder = [tempfile.mkdtemp()]
    if dist.is_initialized():
        dist.broadcast_object_list(folder)
    trainer(output_dir=folder[0], max_steps=2, save_strategy="steps",
            save_steps=2)(copy.deepcopy(model), Log()).train()
    made = trainer()(model, log)
    made.train = functools.partial(
        made.train, resume_from_checkpoint=f"{folder[0]}/checkpoint-2")
    return made


def sft(adapters=None, **more):
    return lambda model, log: _shared(SFTTrainer)(
        model=model, train_dataset=rows(LENGTHS), processing_class=tokenizer(),
        args=SFTConfig(**settings(**{"max_length": 64, "max_steps": STEPS,
                                     **more})),
        callbacks=[log], peft_config=adapters)


def lora(**more):
    return LoraConfig(**{"r": 4, "lora_dropout": 0.0, "target_modules": [
        "q_proj", "down_proj"], **more})


# name -> (function that makes the trainer, whether stream() is called later)
# TRL's trainer replaces the model's forward, so stream() must come later.
CASES = {
    "trainer, accumulating, checkpointing": (trainer(
        gradient_accumulation_steps=2, gradient_checkpointing=True,
        max_grad_norm=0.5), False),
    "sft, lora, packed": (sft(lora(), packing=True), True),
    "trainer, lora on the embedding, head saved": (trainer(
        lora(target_modules=["v_proj", "embed_tokens"],
             modules_to_save=["lm_head"])), False),
    "trainer, resumed within an epoch": (resumed, False),
}


def work(rank: int, file: str, socket: str, folder: str,
         names: list[str]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
                      LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost",
                      # Unused, because the group already exists.
                      MASTER_PORT="1")

    def one(name: str, session: sluice.Session) -> None:
        make, late = CASES[name]
        said = train(make, session, late=late, group=dist.group.WORLD)
        (pathlib.Path(folder) / f"{name} {rank}.json").write_text(
            json.dumps(said))

    run_cases(rank, 2, file, socket, "loops", names, one)

