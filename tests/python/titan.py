"""A small decoder like torchtitan's, without transformers: RoPE by a complex
table of all positions, grouped heads, SwiGLU, and its own head."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, HIDDEN, HEADS, KV_HEADS, LONGEST = 64, 32, 4, 2, 512


def table(width: int = HIDDEN // HEADS) -> torch.Tensor:
    """Returns e^(i angle), complex [LONGEST, width / 2]."""
    rate = 1e4 ** (-torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(LONGEST), rate)
    return torch.polar(torch.ones_like(angle), angle)


def rotate(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """Rotates x [B, S, heads, D] by the table's first S rows."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    turned = pairs * freqs_cis[:x.shape[1]].view(1, x.shape[1], 1, -1)
    return torch.view_as_real(turned).flatten(3).to(x.dtype)


class Attention(nn.Module):
    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, repeats: bool):
        super().__init__()
        self.repeats = repeats
        width = HIDDEN // HEADS
        self.wq = nn.Linear(HIDDEN, HEADS * width, bias=False)
        self.wk = nn.Linear(HIDDEN, KV_HEADS * width, bias=False)
        self.wv = nn.Linear(HIDDEN, KV_HEADS * width, bias=False)
        self.wo = nn.Linear(HEADS * width, HIDDEN, bias=False)

    def forward(self, x, freqs_cis, mask=None):
        q, k, v = (w(x).unflatten(-1, (-1, HIDDEN // HEADS))
                   for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, freqs_cis), rotate(k, freqs_cis)
        if self.repeats:
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=2)
                    for t in (k, v))
        seen = dict(is_causal=True) if mask is None else dict(attn_mask=mask)
        o = self.attend(
            *(t.transpose(1, 2) for t in (q, k, v)), **seen,
            enable_gqa=not self.repeats)
        return self.wo(o.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(HIDDEN, 48), nn.Linear(HIDDEN, 48)
        self.w2 = nn.Linear(48, HIDDEN)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, repeats: bool):
        super().__init__()
        self.attention, self.feed_forward = Attention(repeats), FeedForward()
        self.attention_norm = nn.RMSNorm(HIDDEN)
        self.ffn_norm = nn.RMSNorm(HIDDEN)

    def forward(self, x, freqs_cis, attention_mask=None):
        h = x + self.attention(self.attention_norm(x), freqs_cis,
                               attention_mask)
        return h + self.feed_forward(self.ffn_norm(h))


class Titan(nn.Module):
    mask = None  # bool [1, 1, L, L] with L >= S, True where a row sees a key

    def __init__(self, layers: int = 2, repeats: bool = False):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.register_buffer("freqs_cis", table(), persistent=False)
        self.layers = nn.ModuleDict(
            {str(i): Block(repeats) for i in range(layers)})
        self.norm = nn.RMSNorm(HIDDEN)
        self.output = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        rows = tokens.shape[1]
        seen = () if self.mask is None else (self.mask[..., :rows, :rows],)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis, *seen)
        return self.output(self.norm(h))


def titan(**options) -> Titan:
    torch.manual_seed(0)
    return Titan(**options).train()


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1),
                           tokens[:, 1:].flatten())


def tokens(rows: int = 2, length: int = 75, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (rows, length), generator=generator)
