"""Tiny models of transformers, and the comparison with themselves unstreamed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import torch
import transformers

# What making any model loads takes 2.5 s: here it is loaded before forks.
import transformers.models.llama.modeling_llama
from torch import nn
from transformers import AutoModelForCausalLM

import sluice

transformers.logging.set_verbosity_error()

VOCAB = 97
SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48,
             num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=512,
             pad_token_id=0, attention_dropout=0.0)


def tiny(kind: str = "llama", **changes) -> nn.Module:
    """A model in train mode, eager attention, no weight at 0 or 1 exactly."""
    config = transformers.CONFIG_MAPPING[kind](**{**SIZES, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config,
                                             attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.float().train()


def batch(rows: int = 2, length: int = 75, seed: int = 1
          ) -> dict[str, torch.Tensor]:
    """ids and labels [rows, length], with unequal numbers of labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (rows, length), generator=generator)
    labels = ids.clone()
    labels[0, length // 5:length // 2] = -100
    return {"input_ids": ids, "labels": labels}


class Wrapper(nn.Module):
    """Around another module, as users put into layers."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner


def wrap_mlps(wrap: Callable[[nn.Module], nn.Module],
              model: nn.Module | None = None) -> nn.Module:
    """A tiny model, or this one, with `wrap` around each layer's MLP."""
    model = tiny() if model is None else model
    for layer in model.model.layers:
        layer.mlp = wrap(layer.mlp)
    return model


class AddLoss(torch.autograd.Function):
    """As in DeepSeek-V2's own code: y, and a loss of gradient 1."""

    @staticmethod
    def forward(ctx, y, loss):
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy, torch.ones(())


@dataclasses.dataclass
class Run:
    loss: float
    gradients: dict[str, torch.Tensor | None]


def run(model: nn.Module, inputs: dict) -> Run:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return Run(loss.item(), {n: None if p.grad is None else p.grad.clone()
                             for n, p in model.named_parameters()})


def streamed(model: nn.Module, session: sluice.Session, inputs: dict,
             chunk: int = 16, **options) -> Run:
    """One step of the model streamed, which leaves nothing in the host."""
    stream = sluice.stream(model, session=session, chunk=chunk, **options)
    try:
        got = run(model, inputs)
        stats = stream.stats()
        assert stats.blocks > 0 and stats.host_bytes == 0
        return got
    finally:
        stream.unstream()


def unstreamed(model: nn.Module, inputs: dict, attention: str | None = None
               ) -> Run:
    """What a copy of the model makes of it by itself."""
    twin = copy.deepcopy(model)
    if attention is not None:
        twin.set_attn_implementation(attention)
    return run(twin, inputs)


def assert_same(got: Run, expected: Run, other: Run | None = None) -> None:
    """Per parameter within max(1e-5, 5 x the model's own difference between
    its attention implementations) of its gradient's norm, or within 1e-8 of
    the norm of all, a sixth of what fp32 rounds: where a gradient is zero by
    cancellation (of the queries that see one key), sums in another order
    leave so much on some processors and nothing on others."""
    whole = sum(float(g.norm()) ** 2 for g in expected.gradients.values()
                if g is not None) ** 0.5
    assert abs(got.loss - expected.loss) <= 1e-5 * abs(expected.loss)
    for name, wanted in expected.gradients.items():
        gradient = got.gradients[name]
        if wanted is None or gradient is None:
            assert wanted is gradient or not (
                gradient if wanted is None else wanted).any(), name
            continue
        norm = float(wanted.norm())
        own = 0.0 if other is None else float(
            (other.gradients[name] - wanted).norm())
        apart = float((gradient - wanted).norm())
        allowed = max(1e-5 * norm, 5 * own, 1e-8 * whole)
        assert apart <= allowed, (name, apart, allowed)
