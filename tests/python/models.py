"""Tiny models of transformers, and comparisons with the same models
unstreamed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import torch
import transformers

# Making a model imports this module, which takes 2.5 s. Here it is imported
# before forks.
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
    """Returns a model in train mode, with eager attention, and with no weight
    at exactly 0 or 1."""
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
    """Returns ids and labels [rows, length]; rows have different numbers of
    labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (rows, length), generator=generator)
    labels = ids.clone()
    labels[0, length // 5:length // 2] = -100
    return {"input_ids": ids, "labels": labels}


class Wrapper(nn.Module):
    """Wraps another module, as users' modules in layers do."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner


def wrap_mlps(wrap: Callable[[nn.Module], nn.Module],
              model: nn.Module | None = None) -> nn.Module:
    """Wraps each layer's MLP by `wrap`, in `model` or a tiny model; returns the
    model."""
    model = tiny() if model is None else model
    for layer in model.model.layers:
        layer.mlp = wrap(layer.mlp)
    return model


class AddLoss(torch.autograd.Function):
    """Returns y and adds a loss with gradient 1, as DeepSeek-V2's code does."""

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
    """Runs one streamed step and checks that it leaves no host bytes."""
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
    """Runs one step of an unstreamed copy of the model."""
    twin = copy.deepcopy(model)
    if attention is not None:
        twin.set_attn_implementation(attention)
    return run(twin, inputs)


def assert_same(got: Run, expected: Run, other: Run | None = None) -> None:
    """Checks each parameter's gradient. The limit is the largest of 1e-5 of
    its norm, 5 x the difference between the model's own attention
    implementations (`other`), and 1e-8 of the norm of all gradients. The last
    limit is a sixth of fp32's rounding: if a gradient is zero by cancellation,
    as a query's is if it sees one key, sums in another order differ by this
    much on some processors."""
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
