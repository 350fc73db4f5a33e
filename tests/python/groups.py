"""The ranks of parallel/sequence_parallel_test. They train tiny models on
sequences that the ranks of a group share, and compare them with the unstreamed
models on the whole sequences."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from gloo import run_cases, whole
from group_behaviours import BEHAVIOURS, LEARNED
from group_heads import BEHAVIOURS_OF_HEADS
from group_layers import LAYERS
from group_refusals import CHUNK, MOE
from models import Run, assert_same, batch, tiny
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import sluice

SOFTCAPS = dict(sliding_window=24, query_pre_attn_scalar=8,
                attn_logit_softcapping=5.0, final_logit_softcapping=3.0)
LATENT = dict(
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8,
    v_head_dim=8, head_dim=4, num_key_value_heads=4, n_routed_experts=4,
    num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=24,
    first_k_dense_replace=1)
BALANCED = dict(**MOE, router_aux_loss_coef=0.3)
BALANCED_SOME = dict(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
    num_hidden_layers=3, mlp_only_layers=[1], router_aux_loss_coef=0.3)
# The table of rotary positions depends on the greatest position, and only the
# last rank has a position above original_max_position_embeddings.
STRETCHED = dict(max_position_embeddings=144, rope_parameters=dict(
    rope_type="longrope", rope_theta=10000.0, factor=2.0,
    original_max_position_embeddings=72, short_factor=[1.0] * 4,
    long_factor=[1.0, 1.5, 2.0, 4.0]))


# --- batches: (data parallel row, index in the step) -> arguments ------------

def plain(row: int, i: int, length: int = 75) -> dict:
    return batch(2, length + 5 * row, seed=10 * row + i)


def long(length: int):
    return lambda row, i: plain(row, i, length)


def documents(row: int, i: int) -> dict:
    """Returns rows that are packed differently; one document begins within a
    rank's slice."""
    inputs = plain(row, i)
    length = inputs["input_ids"].shape[1]
    ends = [[21 + row, 50, length], [5, 6, 38, length]]
    inputs["position_ids"] = torch.stack([torch.cat(
        [torch.arange(b - a) for a, b in zip([0, *e], e)]) for e in ends])
    return {**inputs, "use_cache": False}


def padded(row: int, i: int) -> dict:
    inputs = plain(row, i)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 40:] = 0
    inputs["labels"][1, 40:] = -100
    return inputs


def padded_left(row: int, i: int) -> dict:
    inputs = plain(row, i)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, :33] = 0
    inputs["labels"][1, :34] = -100
    return inputs


def routed(row: int, i: int) -> dict:
    return {**padded(row, i), "output_router_logits": True}


# --- wrappings: (model, mesh [data parallel, sequence]) -> wrapped model -----

def alone(model, mesh):
    return model


def ddp(model, mesh):
    return DistributedDataParallel(model)


def fsdp(*units, replicated=False, **options):
    def wrap(model, mesh):
        if not replicated:
            mesh = mesh["dp", "sp"]._flatten("dp_sp")
        for unit in (*model.model.layers, *map(model.get_submodule, units)):
            fully_shard(unit, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)
    return wrap


IN_HOST = {"hidden": "host"}

# name -> (model, its config, ranks per sequence, wrapping, batches, further
# options of stream()). Each case accumulates the gradients of two batches.
CASES = {2: {
    "grouped heads": ("llama", {}, 2, alone, plain),
    "a tail shorter than the group": ("llama", {}, 2, alone, long(65)),
    "one chunk": ("llama", {}, 2, alone, long(7)),
    "one row in the last chunk of one rank": ("llama", {}, 2, alone, long(35)),
    "as many rows as ranks": ("llama", {}, 2, alone, long(2)),
    "fewer rows than ranks": ("llama", {}, 2, alone, lambda row, i: {
        **plain(row, i, 1), "shift_labels": plain(row, i, 1)["labels"]}),
    "one kv head": ("llama", dict(num_key_value_heads=1), 2, alone, plain),
    "kv heads shared unevenly": (
        "llama", dict(hidden_size=48, num_attention_heads=6,
                      num_key_value_heads=3), 2, alone, plain),
    "biases, tied embedding": (
        "qwen2", dict(tie_word_embeddings=True), 2, alone, plain),
    "documents": ("qwen3", {}, 2, alone, documents),
    "half of the tokens rerun": (
        "llama", {}, 2, alone, documents, {"rerun": 0.5}),
    "fsdp2, all tokens rerun": ("qwen3", {}, 2, fsdp(), long(65), {"rerun": 1}),
    "documents and a window": (
        "mistral", dict(sliding_window=24), 2, alone, documents),
    "padding": ("llama", {}, 2, alone, padded),
    "left padding, a window": (
        "mistral", dict(sliding_window=24), 2, alone, padded_left),
    "softcaps": ("gemma2", SOFTCAPS, 2, alone, plain),
    "sinks, experts": ("gpt_oss", {**MOE, "sliding_window": 24}, 2, alone,
                       plain),
    "latent attention": ("deepseek_v3", LATENT, 2, alone, plain),
    "learned positions, documents": ("gpt2", LEARNED, 2, alone, documents),
    "longrope positions": ("llama", STRETCHED, 2, alone, plain),
    "eager attention": ("gptj", {**LEARNED, "rotary_dim": 4, "attn_pdrop": 0.0},
                    2, alone, plain),
    "frozen": ("llama", {}, 2, alone, plain),
    "ddp": ("llama", {}, 2, ddp, plain),
    "fsdp2, experts": ("mixtral", MOE, 2, fsdp(), documents),
    "fsdp2, tied": ("qwen2", dict(tie_word_embeddings=True), 2, fsdp(), plain),
    "fsdp2, embedding, norm and head as units": ("llama", {}, 2, fsdp(
        "model.embed_tokens", "model.norm", "lm_head"), plain),
    "hidden states on host": ("llama", {}, 2, alone, plain, IN_HOST),
    "hidden states on host, a tail shorter than the group": (
        "llama", {}, 2, alone, long(65), IN_HOST),
    "hidden states on host, documents": (
        "mistral", dict(sliding_window=24), 2, alone, documents, IN_HOST),
    "hidden states on host, padding": (
        "qwen3", {}, 2, alone, padded_left, IN_HOST),
    "hidden states on host, softcaps": (
        "gemma2", SOFTCAPS, 2, alone, plain, IN_HOST),
    "hidden states on host, learned positions": (
        "gpt2", LEARNED, 2, alone, documents, IN_HOST),
    "hidden states on host, frozen": ("llama", {}, 2, alone, plain, IN_HOST),
    "hidden states on host, fsdp2, experts": (
        "mixtral", MOE, 2, fsdp("model.norm"), plain, IN_HOST),
    "hidden states on host, fsdp2, tied": ("qwen2", dict(
        tie_word_embeddings=True), 2, fsdp(), plain, IN_HOST),
    "router losses": ("mixtral", BALANCED, 2, alone, routed),
    "router losses, whole head": (
        "mixtral", BALANCED, 2, alone, routed, {"head": "whole"}),
    "router losses, some dense layers, hidden states on host": (
        "qwen3_moe", BALANCED_SOME, 2, alone, routed, IN_HOST),
    "router losses, fsdp2": ("mixtral", BALANCED, 2, fsdp("lm_head"), routed),
    "fsdp2, one rank per sequence": ("llama", {}, 1, fsdp(), plain),
}, 4: {
    "sinks, experts": ("gpt_oss", {**MOE, "sliding_window": 24}, 4, alone,
                       long(67)),
    "ddp": ("llama", {}, 2, ddp, plain),
    "fsdp2": ("llama", {}, 2, fsdp("lm_head"), plain),
    "fsdp2, packed": ("mixtral", MOE, 2, fsdp(), documents),
    "router losses, fsdp2": ("mixtral", BALANCED, 2, fsdp(), routed),
    "fsdp2, four ranks": ("llama", {}, 4, fsdp(), padded),
    "hsdp": ("llama", {}, 2, fsdp("lm_head", replicated=True), plain),
}}

# Ranks -> cases that run only with SLUICE_DEEP=1. Other cases execute the same
# branches: with hidden states on the host, sharded, or with another number of
# ranks.
ONLY_DEEP = {2: {
    "a tail shorter than the group", "biases, tied embedding", "documents",
    "padding", "sinks, experts", "learned positions, documents", "frozen",
    "ddp", "fsdp2, experts", "hidden states on host, documents",
    "hidden states on host, softcaps", "hidden states on host, fsdp2, tied",
    "router losses", "router losses, fsdp2", "half of the tokens rerun",
}, 4: {"fsdp2"}}


def check(name: str, case: tuple, session: sluice.Session) -> None:
    kind, changes, ranks, wrap, inputs, *options = case
    rows = dist.get_world_size() // ranks
    mesh = init_device_mesh("cpu", (rows, ranks), mesh_dim_names=("dp", "sp"))
    row = mesh["dp"].get_local_rank()
    model = tiny(kind, **changes)
    if name.endswith("frozen"):
        model.model.embed_tokens.requires_grad_(False)
        model.model.layers[0].requires_grad_(False)
    twin = copy.deepcopy(model)
    stream = sluice.stream(model, session=session, chunk=CHUNK, quiet=True,
                           group=mesh["sp"].get_group(),
                           **dict(*options))
    model = wrap(model, mesh)
    loss = 0.0
    for i in range(2):
        one = model(**inputs(row, i)).loss
        one.backward()
        loss += one.item()
    stats = stream.stats()
    streamed = name != "fewer rows than ranks"
    assert (stats.blocks > 0) == streamed and stats.host_bytes == 0, stats
    got = Run(loss, {n.removeprefix("module."): whole(p.grad)
                     for n, p in model.named_parameters()})
    if wrap is alone:
        for gradient in got.gradients.values():
            if gradient is not None:
                dist.all_reduce(gradient)
                gradient /= ranks
    expected = _expected(twin, inputs, rows, row, "eager")
    try:
        assert_same(got, expected)
    # Allows what the model's own attention implementations differ by.
    except AssertionError:
        if kind in ("gpt_oss", "gemma2"):
            raise
        assert_same(got, expected,
                    _expected(twin, inputs, rows, row, "sdpa"))


def _expected(model, inputs, rows: int, row: int, attention: str
              ) -> Run:
    """Runs the unstreamed model. Returns this row's loss, and the gradients
    averaged over data parallel rows."""
    twin = copy.deepcopy(model)
    twin.set_attn_implementation(attention)
    losses = [sum(_backward(twin, inputs(r, i)) for i in range(2))
              for r in range(rows)]
    return Run(losses[row], {
        n: None if p.grad is None else p.grad / rows
        for n, p in twin.named_parameters()})


def _backward(model, inputs) -> float:
    loss = model(**inputs).loss
    loss.backward()
    return loss.item()


def work(rank: int, world: int, file: str, socket: str,
         names: list[str]) -> None:
    def one(name: str, session: sluice.Session) -> None:
        behaves = {**BEHAVIOURS, **BEHAVIOURS_OF_HEADS, **LAYERS}.get(name)
        if behaves is not None:
            behaves(session, dist.group.WORLD)
        else:
            check(name, CASES[world][name], session)

    run_cases(rank, world, file, socket, "sp", names, one)

