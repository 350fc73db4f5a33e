"""Streams the layers of a decoder written as in torchtitan, without
transformers. The decoder's embedding, head and loss run unstreamed.

    PYTHONPATH=client/python SLUICE_BIN_DIR=build/release/bin \
      python client/python/examples/own_decoder.py
"""
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sluice

TEXT = b"The quick brown fox jumps over the lazy dog. " * 40
HIDDEN, HEADS, LONGEST = 64, 4, 4096


def rotate(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Returns x [B, S, heads, D] rotated by the first S rows of `freqs_cis`."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[:x.shape[1], None]).flatten(-2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.wqkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.wo = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.w1 = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.w2 = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        q, k, v = self.wqkv(self.norms[0](x)).unflatten(
            -1, (3, HEADS, -1)).unbind(2)
        o = F.scaled_dot_product_attention(
            rotate(q, freqs_cis).transpose(1, 2),
            rotate(k, freqs_cis).transpose(1, 2), v.transpose(1, 2),
            is_causal=True)
        x = x + self.wo(o.transpose(1, 2).flatten(2))
        return x + self.w2(F.silu(self.w1(self.norms[1](x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rate = 1e4 ** (-torch.arange(0, HIDDEN // HEADS, 2) * HEADS / HIDDEN)
        angle = torch.outer(torch.arange(LONGEST), rate)
        self.register_buffer("freqs_cis", torch.polar(
            torch.ones_like(angle), angle), persistent=False)
        self.embedding = nn.Embedding(256, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.output = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, 256)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.freqs_cis)
        return self.output(self.norm(x))


torch.manual_seed(0)
model, ids = Decoder(), torch.tensor([list(TEXT)])
stream = sluice.stream_layers(
    model.layers, chunk=512, rows={"freqs_cis": 0},  # one row per position
    sample=lambda: model(ids[:, :128]))  # the layers are probed in this call
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(5):
    loss = F.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
print(f"{stream.stats().blocks} blocks of attention streamed, "
      f"{stream.stats().host_peak_bytes / 2**20:.1f} MiB of host memory "
      "at the peak")
stream.unstream()
