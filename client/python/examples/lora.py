"""Trains LoRA adapters and the head of a streamed model by PEFT.

    PYTHONPATH=client/python SLUICE_BIN_DIR=build/release/bin \
      python client/python/examples/lora.py
"""
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import sluice

TEXT = b"The quick brown fox jumps over the lazy dog. " * 40

torch.manual_seed(0)
model = get_peft_model(LlamaForCausalLM(LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)),
    LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"],
               modules_to_save=["lm_head"]))
stream = sluice.stream(model, chunk=512)  # or before get_peft_model
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=3e-3)
ids = torch.tensor([list(TEXT)])
for step in range(5):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
share = sum(p.numel() for p in trained) / sum(
    p.numel() for p in model.parameters())
print(f"{share:.0%} of the parameters trained; "
      f"{stream.stats().blocks} blocks of attention streamed")
stream.unstream()
