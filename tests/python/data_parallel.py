"""The ranks of parallel/data_parallel_test. Each trains a tiny model streamed
and plain, both wrapped the same way, on batches that differ per rank, and
compares the results."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist
from gloo import run_cases, whole
from models import assert_same, batch, run, tiny
from peft import LoraConfig, get_peft_model
from titan import VOCAB, Titan, loss_of, titan, tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import sluice

TIED = dict(tie_word_embeddings=True)
LEARNED = dict(n_embd=32, n_layer=2, n_head=4, n_positions=512, rotary_dim=4,
               attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
MOE = dict(num_local_experts=4, num_experts_per_tok=2)
# One layer of Mamba-1, which runs whole, and one with attention.
HYBRID = dict(attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False,
              mamba_d_state=4, mamba_dt_rank=4, num_experts=1)
ROUTERS = dict(**MOE, output_router_logits=True, router_aux_loss_coef=0.3)


def ddp(**options):
    return lambda model: DistributedDataParallel(model, **options)


def lora(model):
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(
        r=4, lora_dropout=0.0, init_lora_weights=False, target_modules=[
            "q_proj", "down_proj", "embed_tokens"],
        modules_to_save=["lm_head"]))


def packed(rows, length, seed):
    """Returns a batch with position_ids that cut each row into two documents,
    at a different place in each row."""
    places = torch.stack([torch.cat([torch.arange(cut), torch.arange(
        length - cut)]) for cut in range(11 + seed % 5, 11 + seed % 5 + rows)])
    return {**batch(rows, length, seed), "position_ids": places,
            "use_cache": False}


def fsdp(units=(), shape=None, **options):
    """Makes an FSDP unit of each layer, of each module named in `units`, and of
    all other parameters."""
    def wrap(model):
        world = dist.get_world_size()
        mesh = init_device_mesh("cpu", shape or (world,), mesh_dim_names=(
            ("replicate", "shard") if shape else ("shard",)))
        base = model.get_base_model() if hasattr(
            model, "peft_config") else model
        layers = (base.layers.values() if isinstance(base, Titan)
                  else base.model.layers)
        for layer in layers:
            fully_shard(layer, mesh=mesh, **options)
        for unit in units:
            fully_shard(model.get_submodule(unit), mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)
    return wrap


# name -> (model, its config, wrapping, number of batches)
CASES = {
    "ddp": ("llama", {}, ddp(), 1),
    "ddp, static graph, bucket views": (
        "llama", {}, ddp(static_graph=True, gradient_as_bucket_view=True), 1),
    "fsdp2": ("llama", {}, fsdp(), 1),
    "fsdp2, tied": ("qwen2", TIED, fsdp(), 1),
    "fsdp2, experts": ("mixtral", MOE, fsdp(), 1),
    "fsdp2, head as a unit": ("llama", {}, fsdp(["lm_head"]), 1),
    "fsdp2, embedding, norm and head as units": (
        "llama", {}, fsdp(["model.embed_tokens", "model.norm", "lm_head"]), 2),
    "fsdp2, weights kept after forward": (
        "llama", {}, fsdp(["lm_head"], reshard_after_forward=False), 2),
    "fsdp2, lora": ("llama", {}, fsdp(), 2),
    "ddp, lora": ("llama", {}, ddp(), 1),
    "fsdp2, the user's own layers": ("titan", {}, fsdp(["output"]), 2),
    "fsdp2, log-probabilities": ("llama", {}, fsdp(), 2),
    "fsdp2, head as a unit, log-probabilities": (
        "llama", {}, fsdp(["lm_head"]), 2),
    "ddp, static graph, log-probabilities": (
        "llama", {}, ddp(static_graph=True), 1),
    # All weights of a layer's products have one size, so memory that held one
    # of them in forward may hold another in backward.
    "fsdp2, stored products": ("llama", dict(
        num_key_value_heads=4, intermediate_size=32), fsdp(), 2),
    "fsdp2, packed rows": ("llama", {}, fsdp(["lm_head"]), 2),
    "fsdp2, weights on the host": (
        "llama", {}, fsdp(
            offload_policy=CPUOffloadPolicy(pin_memory=False)), 1),
    "hsdp": ("llama", {}, fsdp(["lm_head"], shape=(2, 2)), 1),
    "frozen embedding and layer": ("llama", {}, fsdp(["lm_head"]), 1),
    "ddp, hidden states on host": ("qwen2", TIED, ddp(), 2),
    "fsdp2, hidden states on host": ("qwen2", TIED, fsdp(), 2),
    "fsdp2, embedding, norm and head as units, hidden states on host": (
        "llama", {}, fsdp(["model.embed_tokens", "model.norm", "lm_head"]), 2),
    "fsdp2, decoder as a unit, hidden states on host": (
        "llama", {}, fsdp(["model"]), 2),
    "fsdp2, decoder as a unit": ("llama", {}, fsdp(["model"]), 2),
    "frozen embedding and layer, hidden states on host": (
        "llama", {}, fsdp(["lm_head"]), 1),
    # Layers of gptj have buffers, which DDP broadcasts before each forward.
    "ddp, two forwards": ("gptj", LEARNED, ddp(), 2),
    "ddp, routers' loss": ("mixtral", ROUTERS, ddp(), 1),
    "fsdp2, routers' loss": ("mixtral", ROUTERS, fsdp(), 2),
    "fsdp2, head as a unit, routers' loss": (
        "mixtral", ROUTERS, fsdp(["lm_head"]), 1),
    "fsdp2, routers' loss, hidden states on host": (
        "mixtral", ROUTERS, fsdp(), 1),
    "ddp, buffers not broadcast, two forwards": (
        "gptj", LEARNED, ddp(broadcast_buffers=False), 1),
    "fsdp2, two forwards": ("llama", {}, fsdp(), 1),
    "ddp, whole layers": ("jamba", HYBRID, ddp(static_graph=True), 1),
    "fsdp2, whole layers, hidden states on host": (
        "jamba", HYBRID, fsdp(["lm_head"]), 2),
    "ddp, loss of logits": ("llama", {}, ddp(), 2),
    "ddp, static graph, loss of logits": (
        "llama", {}, ddp(static_graph=True), 2),
}

# Cases that run only with SLUICE_DEEP=1. Others execute the same branches.
ONLY_DEEP = {
    "fsdp2, head as a unit", "fsdp2, head as a unit, log-probabilities",
    "frozen embedding and layer", "fsdp2, decoder as a unit",
    "ddp, routers' loss", "fsdp2, routers' loss, hidden states on host",
    "ddp, loss of logits",
    "fsdp2, embedding, norm and head as units, hidden states on host",
}


class Scored(torch.nn.Module):
    """Computes its loss from sluice.logprobs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        found, entropy = sluice.logprobs(self.model, entropy=True, **inputs)
        return SimpleNamespace(loss=(found * found + entropy).mean())


class OfLogits(torch.nn.Module):
    """Computes its loss from the logits that the wrapped model returns."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        logits = self.model(**inputs).logits
        return SimpleNamespace(loss=logits.log_softmax(-1).square().mean())


class TwoForwards(torch.nn.Module):
    """Computes one loss from two forwards, as DPO does."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        losses = [self.model(input_ids=ids, labels=ids).loss
                  for ids in (input_ids, labels.clamp(min=3).flip(1))]
        return SimpleNamespace(loss=losses[0] - 0.5 * losses[1])


class WithLoss(torch.nn.Module):
    """Computes the loss of a Titan, which returns logits only."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return SimpleNamespace(loss=loss_of(self.model, input_ids % VOCAB))


def stream_it(model, session, **options):
    if isinstance(model, Titan):
        return sluice.stream(
            layers=model.layers, attention="sdpa", rows={"freqs_cis": 0},
            sample=lambda: model(tokens()), session=session, chunk=16,
            quiet=True)
    return sluice.stream(model, session=session, chunk=16, quiet=True,
                         check="always", **options)


def train(case: str, rank: int, streamed: sluice.Session | None):
    kind, changes, wrap, batches = CASES[case]
    model = titan() if kind == "titan" else tiny(kind, **changes)
    if case.startswith("frozen"):
        model.model.embed_tokens.requires_grad_(False)
        model.model.layers[0].requires_grad_(False)
    stream = streamed and stream_it(
        model, streamed,
        hidden="host" if case.endswith("hidden states on host") else "device",
        policy={"*": {"keep": 0.3, "swap": 0.5}} if case.endswith(
            "stored products") else "recompute")
    made = packed if case.endswith("packed rows") else batch
    model = wrap(lora(model) if case.endswith("lora") else model)
    if case.endswith("log-probabilities"):
        model = Scored(model)
    if case.endswith("loss of logits"):
        model = OfLogits(model)
    if case.endswith("two forwards"):
        model = TwoForwards(model)
    if kind == "titan":
        model = WithLoss(model)
    found = [run(model, made(2, 60 + 5 * rank, seed=10 * rank + i))
             for i in range(batches)]
    if stream:
        stats = stream.stats()
        assert stats.blocks > 0 and stats.host_bytes == 0, stats
    for one in found:
        one.gradients = {n: whole(g) for n, g in one.gradients.items()}
    return found


def work(rank: int, world: int, file: str, socket: str,
         cases: list[str]) -> None:
    def one(case: str, session: sluice.Session) -> None:
        plain = train(case, rank, None)
        for got, expected in zip(train(case, rank, session), plain):
            assert_same(got, expected)

    run_cases(rank, world, file, socket, "dp", cases, one)

