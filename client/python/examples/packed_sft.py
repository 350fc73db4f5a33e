"""Trains a streamed model by TRL's SFTTrainer with packing: one row has several
documents, which do not attend to each other.

    PYTHONPATH=client/python SLUICE_BIN_DIR=build/release/bin \
      python client/python/examples/packed_sft.py
"""
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import sluice

WORDS = "the quick brown fox jumps over a lazy dog".split()


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per word, made here because the hub
    may be unreachable."""
    ids = {word: i for i, word in enumerate(["<pad>", "<end>", *WORDS])}
    made = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>",
                                   eos_token="<end>")


torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))
stream = sluice.stream(model, chunk=128)
texts = [" ".join(WORDS * (1 + i % 7)) for i in range(64)]
with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        model, SFTConfig(
            folder, packing=True, max_length=512, max_steps=4,
            per_device_train_batch_size=1, learning_rate=3e-3,
            use_cpu=True, bf16=False, logging_steps=1, save_strategy="no",
            report_to=[], disable_tqdm=True),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer())
    trainer.train()
losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
print(f"packed rows of 512 tokens: loss {losses[0]:.4f} in the first "
      f"step, loss {losses[-1]:.4f} in the last; "
      f"{stream.stats().blocks} blocks of attention streamed")
stream.unstream()
