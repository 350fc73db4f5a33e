"""The ranks of parallel/unmade_weights_test. A model is streamed and sharded
before all ranks have its weights. Then it gets a plain model's weights and is
compared with the plain model."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from gloo import run_cases, whole
from models import Run, assert_same, batch, run, tiny
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import sluice

KINDS = {"llama": {}, "mixtral": dict(num_local_experts=4,
                                      num_experts_per_tok=2),
         "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=512,
                      attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)}


def on_meta(kind: str) -> nn.Module:
    with torch.device("meta"):
        return tiny(kind, **KINDS[kind])


def empty(kind: str) -> nn.Module:
    """Returns a model without weights; its buffers have values."""
    with init_empty_weights(include_buffers=False):
        return tiny(kind, **KINDS[kind])


def on_one_rank(kind: str) -> nn.Module:
    """Returns a model with weights on rank 0 alone, as accelerate's
    cpu_ram_efficient_loading makes it."""
    return tiny(kind, **KINDS[kind]) if dist.get_rank() == 0 else (
        on_meta(kind))


def layers_of(model: nn.Module) -> nn.ModuleList:
    return getattr(model.base_model, "layers", None) or model.base_model.h


def shard(model: nn.Module) -> None:
    for layer in layers_of(model):
        fully_shard(layer)
    fully_shard(model)


@torch.no_grad()
def fill(model: nn.Module, plain: nn.Module) -> None:
    """Allocates the model's memory and copies weights and buffers of `plain`.
    """
    model.to_empty(device="cpu")
    for (_, mine), (_, its) in zip(model.named_parameters(),
                                   plain.named_parameters()):
        mine.copy_(distribute_tensor(its, mine.device_mesh, mine.placements)
                   if isinstance(mine, DTensor) else its)
    for mine, its in zip(model.buffers(), plain.buffers()):
        mine.copy_(its)


# name -> (function that makes the model, whether sharding precedes stream())
CASES: dict[str, tuple[Callable[[str], nn.Module], bool]] = {
    "meta, streamed, then sharded": (on_meta, False),
    "meta, sharded, then streamed": (on_meta, True),
    "empty, streamed, then sharded": (empty, False),
    "empty, sharded, then streamed": (empty, True),
    "one rank has weights, streamed, then sharded": (on_one_rank, False)}


def check(kind: str, case: str, session: sluice.Session) -> None:
    make, sharded = CASES[case]
    model, plain = make(kind), tiny(kind, **KINDS[kind])
    if sharded:
        shard(model)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    if not sharded:
        shard(model)
    fill(model, plain)
    found = run(model, batch())
    assert stream.head == "rows" and stream.stats().blocks > 0
    found.gradients = {n: whole(g) for n, g in found.gradients.items()}
    assert_same(Run(found.loss, found.gradients), run(plain, batch()))
    stream.unstream()


def work(rank: int, world: int, file: str, socket: str) -> None:
    run_cases(rank, world, file, socket, "unmade", [
        f"{kind}: {case}" for kind in KINDS for case in CASES
        if kind == "llama" or case.startswith("meta")], lambda case, session:
        check(*case.split(": "), session))
