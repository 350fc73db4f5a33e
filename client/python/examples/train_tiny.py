"""Trains a tiny Llama with random weights on a repeated text, streamed.

    PYTHONPATH=client/python SLUICE_BIN_DIR=build/release/bin \
      python client/python/examples/train_tiny.py [STEPS]
"""
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sluice

TEXT = b"The quick brown fox jumps over the lazy dog. " * 100

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))
stream = sluice.stream(model.train(), chunk=512)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
ids = torch.tensor([list(TEXT)])  # [1, 4500]
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}, "
          f"{stream.stats().host_peak_bytes / 2**20:.1f} MiB of host "
          "memory at the peak")
stream.unstream()
