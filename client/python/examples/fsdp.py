"""Trains a streamed model under FSDP2, one process per rank. The two ranks
train on different sequences.

    PYTHONPATH=client/python SLUICE_BIN_DIR=build/release/bin \
      torchrun --standalone --nproc-per-node 2 client/python/examples/fsdp.py
"""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import sluice

TEXTS = (b"The quick brown fox jumps over the lazy dog. " * 40,
         b"Pack my box with five dozen liquor jugs. " * 40)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)  # all ranks draw the same weights
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))
stream = sluice.stream(model, chunk=512, quiet=rank > 0)
for layer in model.model.layers:  # one FSDP2 unit per layer, none inside
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
ids = torch.tensor([list(TEXTS[rank % len(TEXTS)])])
for step in range(5):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(mean := loss.detach() / dist.get_world_size())
    if rank == 0:
        print(f"step {step}: loss {mean.item():.4f} over all ranks, "
              f"gradient norm {norm.full_tensor().item():.3f}")
if rank == 0:
    print(f"{dist.get_world_size()} ranks, each with "
          f"{stream.stats().host_peak_bytes / 2**20:.1f} MiB of host "
          "memory at the peak")
stream.unstream()
dist.destroy_process_group()
