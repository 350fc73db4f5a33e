"""Trains and evaluates a streamed model by transformers' Trainer.

    PYTHONPATH=client/python SLUICE_BIN_DIR=build/release/bin \
      python client/python/examples/trainer.py
"""
import tempfile

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import sluice

TEXT = b"The quick brown fox jumps over the lazy dog. " * 40

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))
stream = sluice.stream(model, chunk=512)
row = {"input_ids": list(TEXT), "labels": list(TEXT)}
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(model, TrainingArguments(
        folder, per_device_train_batch_size=1, max_steps=4,
        gradient_accumulation_steps=2, learning_rate=3e-3, use_cpu=True,
        logging_steps=1, save_strategy="no", report_to=[],
        disable_tqdm=True), train_dataset=[row] * 8, eval_dataset=[row])
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
print(f"evaluation: loss {before:.4f} before 4 steps, loss {after:.4f} "
      f"after; {stream.stats().steps} forwards streamed, "
      f"{stream.stats().host_peak_bytes / 2**20:.1f} MiB of host memory "
      "at the peak")
stream.unstream()
