"""A small decoder like Qwen3's in plain torch, which needs nothing but torch:
grouped heads, norms of q and k, RoPE, SwiGLU.

Shapes: B batch, S rows, H hidden, h heads, g heads of k and v, D head width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    width: int = 16
    ffn: int = 96
    layers: int = 2
    vocabulary: int = 128
    value_width: int | None = None  # None: the keys' width

    @property
    def of_values(self) -> int:
        return self.value_width or self.width


class Norm(nn.Module):
    """RMSNorm in the operations that transformers uses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype != torch.float64 else x
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [B, heads, S, D] by tables [1, S, D]."""
    one, other = x.chunk(2, dim=-1)
    turned = torch.cat((-other, one), dim=-1)
    return x * cos[:, None] + turned * sin[:, None]


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        rows, width = sizes.hidden, sizes.width
        self.q = nn.Linear(rows, sizes.heads * width, bias=False)
        self.k = nn.Linear(rows, sizes.kv_heads * width, bias=False)
        self.v = nn.Linear(rows, sizes.kv_heads * sizes.of_values, bias=False)
        self.o = nn.Linear(sizes.heads * sizes.of_values, rows, bias=False)
        self.q_norm, self.k_norm = Norm(width), Norm(width)
        self.gate = nn.Linear(rows, sizes.ffn, bias=False)
        self.up = nn.Linear(rows, sizes.ffn, bias=False)
        self.down = nn.Linear(sizes.ffn, rows, bias=False)
        self.attention_norm, self.ffn_norm = Norm(rows), Norm(rows)

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor],
                attention_mask: Tensor | None = None) -> Tensor:
        """x [B, S, H]; the mask is bool [1, 1, S, S], True where a row sees a
        key, or None for causal."""
        normed, sizes = self.attention_norm(x), self.sizes
        q, k, v = (project(normed).unflatten(-1, (-1, width)).transpose(1, 2)
                   for project, width in ((self.q, sizes.width),
                                          (self.k, sizes.width),
                                          (self.v, sizes.of_values)))
        q, k = (rotate(t, *position_embeddings)
                for t in (self.q_norm(q), self.k_norm(k)))
        o = F.scaled_dot_product_attention(
            q, k, v, attention_mask, is_causal=attention_mask is None,
            enable_gqa=True)
        x = x + self.o(o.transpose(1, 2).flatten(2))
        normed = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids [B, S] -> logits [B, S, vocabulary]."""
        x = self.embedding(ids)
        tables = tuple(t[None].to(x) for t in self._tables(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, tables, mask)
        return self.head(self.norm(x))

    def _tables(self, rows: int) -> tuple[Tensor, Tensor]:
        """Returns cos and sin [S, D], computed on the CPU: the same bits
        everywhere."""
        width = self.sizes.width
        rate = 1e4 ** (-torch.arange(0, width, 2) / width)
        angle = torch.outer(torch.arange(rows), rate).repeat(1, 2)
        return angle.cos(), angle.sin()


def seeded(sizes: Sizes = Sizes()) -> Decoder:
    """Returns a model on the CPU in fp32, with no norm weight exactly 1."""
    generator = torch.Generator().manual_seed(0)
    model = Decoder(sizes).train()
    with torch.no_grad():
        for name, p in model.named_parameters():
            spread = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.1 * spread if "norm" in name else
                    spread * p.shape[-1] ** -0.5)
    return model


def twin(model: Decoder, dtype: torch.dtype) -> Decoder:
    return copy.deepcopy(model).to(dtype)


def loss_of(model: Callable[..., Tensor], ids: Tensor,
            mask: Tensor | None = None) -> Tensor:
    """Returns the mean loss of predicting the next row's id, over all rows but
    the last."""
    logits = model(ids, mask)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float()
                           if logits.dtype != torch.float64 else
                           logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
