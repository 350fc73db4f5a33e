"""The ranks of groups_test: train tiny models on sequences that the ranks of a
group share, and compare with the model itself on the whole sequences.

    groups.py RANKS FILE_OF_THE_GROUP SOCKET CASE...
"""

from __future__ import annotations

import copy
import datetime
import multiprocessing
import sys

import pytest
import sluice
import torch
import torch.distributed as dist
from models import Run, assert_same, batch, run, tiny
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

CHUNK = 16
SOFTCAPS = dict(sliding_window=24, query_pre_attn_scalar=8,
                attn_logit_softcapping=5.0, final_logit_softcapping=3.0)
MOE = dict(num_local_experts=4, num_experts_per_tok=2)
LATENT = dict(
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8,
    v_head_dim=8, head_dim=4, num_key_value_heads=4, n_routed_experts=4,
    num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=24,
    first_k_dense_replace=1)
LEARNED = dict(n_embd=32, n_layer=2, n_head=4, n_positions=512,
               attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
# The table of rotary positions depends on the greatest one.
STRETCHED = dict(max_position_embeddings=40, rope_parameters=dict(
    rope_type="dynamic", factor=2.0, rope_theta=10000.0))


# --- batches: (data parallel row, which of the step) -> arguments -------------

def plain(row: int, i: int, length: int = 75) -> dict:
    return batch(2, length + 5 * row, seed=10 * row + i)


def long(length: int):
    return lambda row, i: plain(row, i, length)


def documents(row: int, i: int) -> dict:
    """Packed differently in each batch row; one begins within a slice."""
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


# --- wrappings: mesh [data parallel, sequence] -> what is done to the model ---

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


# name -> (model, its config, ranks per sequence, wrapping, batches); two steps
# of each are accumulated.
CASES = {2: {
    "grouped": ("llama", {}, 2, alone, plain),
    "a tail shorter than the group": ("llama", {}, 2, alone, long(65)),
    "one chunk": ("llama", {}, 2, alone, long(7)),
    "as many rows as ranks": ("llama", {}, 2, alone, long(2)),
    "fewer rows than ranks": ("llama", {}, 2, alone, lambda row, i: {
        **plain(row, i, 1), "shift_labels": plain(row, i, 1)["labels"]}),
    "one kv head": ("llama", dict(num_key_value_heads=1), 2, alone, plain),
    "heads that share unevenly": (
        "llama", dict(hidden_size=48, num_attention_heads=6,
                      num_key_value_heads=3), 2, alone, plain),
    "biases, tied": ("qwen2", dict(tie_word_embeddings=True), 2, alone, plain),
    "documents": ("qwen3", {}, 2, alone, documents),
    "documents and a window": (
        "mistral", dict(sliding_window=24), 2, alone, documents),
    "padding": ("llama", {}, 2, alone, padded),
    "softcaps": ("gemma2", SOFTCAPS, 2, alone, plain),
    "sinks, experts": ("gpt_oss", {**MOE, "sliding_window": 24}, 2, alone,
                       plain),
    "latent": ("deepseek_v3", LATENT, 2, alone, plain),
    "learned positions": ("gpt2", LEARNED, 2, alone, plain),
    "learned positions, documents": ("gpt2", LEARNED, 2, alone, documents),
    "positions stretched": ("llama", STRETCHED, 2, alone, plain),
    "written out": ("gptj", {**LEARNED, "rotary_dim": 4, "attn_pdrop": 0.0},
                    2, alone, plain),
    "frozen": ("llama", {}, 2, alone, plain),
    "ddp": ("llama", {}, 2, ddp, plain),
    "fsdp2": ("llama", {}, 2, fsdp(), plain),
    "fsdp2, experts": ("mixtral", MOE, 2, fsdp(), documents),
    "fsdp2, tied": ("qwen2", dict(tie_word_embeddings=True), 2, fsdp(), plain),
    "fsdp2, units of their own": ("llama", {}, 2, fsdp(
        "model.embed_tokens", "model.norm", "lm_head"), plain),
    "fsdp2, a group of one": ("llama", {}, 1, fsdp(), plain),
}, 4: {
    "grouped": ("llama", {}, 4, alone, documents),
    "sinks, experts": ("gpt_oss", {**MOE, "sliding_window": 24}, 4, alone,
                       long(67)),
    "ddp": ("llama", {}, 2, ddp, plain),
    "fsdp2": ("llama", {}, 2, fsdp("lm_head"), plain),
    "fsdp2, packed": ("mixtral", MOE, 2, fsdp(), documents),
    "fsdp2, four ranks": ("llama", {}, 4, fsdp(), padded),
    "hsdp": ("llama", {}, 2, fsdp("lm_head", replicated=True), plain),
}}


def check(name: str, case: tuple, session: sluice.Session) -> None:
    kind, changes, ranks, wrap, inputs = case
    rows = dist.get_world_size() // ranks
    mesh = init_device_mesh("cpu", (rows, ranks), mesh_dim_names=("dp", "sp"))
    row = mesh["dp"].get_local_rank()
    model = tiny(kind, **changes)
    if name == "frozen":
        model.model.embed_tokens.requires_grad_(False)
        model.model.layers[0].requires_grad_(False)
    expected = [_expected(model, inputs, rows, row, a)
                for a in ("eager", "sdpa")]
    stream = sluice.stream(model, session=session, chunk=CHUNK, quiet=True,
                           group=mesh["sp"].get_group())
    model = wrap(model, mesh)
    loss = 0.0
    for i in range(2):
        one = model(**inputs(row, i)).loss
        one.backward()
        loss += one.item()
    stats = stream.stats()
    streamed = name != "fewer rows than ranks"
    assert (stats.blocks > 0) == streamed and stats.host_bytes == 0, stats
    got = Run(loss, {n.removeprefix("module."): _whole(p.grad)
                     for n, p in model.named_parameters()})
    if wrap is alone:
        for gradient in got.gradients.values():
            if gradient is not None:
                dist.all_reduce(gradient)
                gradient /= ranks
    assert_same(got, *expected)


def _expected(model, inputs, rows: int, row: int, attention: str
              ) -> Run | None:
    """By the model itself: its own batches' losses, and the mean over data
    parallel rows of the gradients."""
    if attention != "eager" and model.config.model_type in (
            "gpt_oss", "gemma2"):
        return None
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


def _whole(gradient):
    return gradient.full_tensor() if isinstance(gradient, DTensor) else (
        gradient)


# --- what else a group means: name -> what all its ranks do -------------------

def host_bytes(session, group) -> None:
    """Per rank, to the byte, in a whole number of chunks: README.md."""
    size, layers, hidden, kv, heads, tokens, chunks = (
        dist.get_world_size(group), 3, 32, 8, 4, 128, 4)
    replicas = size  # of the one kv head
    model = tiny(num_hidden_layers=layers, num_key_value_heads=1)
    stream = sluice.stream(model, session=session, chunk=tokens // chunks,
                           group=group, quiet=True)
    model(**batch(1, tokens)).loss.backward()
    per_token = layers * (2 * 4 * replicas * kv + 4 * hidden + 4 * hidden
                          + 4 * heads) / size
    per_token += 8 * replicas * kv / size * (1 - 1 / chunks)
    assert stream.stats().host_peak_bytes == tokens * per_token
    assert stream.stats().host_bytes == 0


def other_rows(session, group) -> None:
    """One error on all ranks, and the next step runs."""
    model, rank = tiny(), dist.get_rank(group)
    stream = sluice.stream(model, session=session, chunk=CHUNK, group=group,
                           quiet=True)
    good = batch()
    swapped = {n: t.flip(1) if rank else t for n, t in good.items()}
    longer = batch(length=75 + rank)
    masked = {**good, "attention_mask": torch.ones(2, 75)}
    short = batch(length=1) if rank else good
    relabelled = {**good, "labels": good["labels"] - rank}
    for inputs, said in (
            (swapped, "input_ids, labels"), (longer, "length.*'length': "),
            (masked if rank else good, "attention_mask"),
            (relabelled, "agree on labels"), (short, "length"),
            ({**good, "num_items_in_batch": 70 + rank}, "num_items_in_batch"),
            ({"input_ids": good["input_ids"]} if rank else good, "call")):
        with pytest.raises(sluice.Error, match=said):
            model(**inputs)
        assert stream.stats().host_bytes == 0
    assert_same(run(model, good), run(model, good))
    stream.unstream()


def other_chunks(session, group) -> None:
    model = tiny()
    sluice.stream(model, session=session, group=group, quiet=True,
                  chunk=CHUNK + dist.get_rank(group))
    with pytest.raises(sluice.Error, match="agree on chunk.*'chunk': 1"):
        model(**batch())


def refused_models(session, group) -> None:
    """On each rank alone: no collective has begun."""
    for kind, changes, said in (
            ("roberta", dict(is_decoder=True, hidden_dropout_prob=0.0,
                             attention_probs_dropout_prob=0.0),
             "positions of its own"),
            ("llama", dict(hidden_size=24, num_attention_heads=3,
                           num_key_value_heads=1), "3 heads.*cannot share")):
        model = tiny(kind, **changes)
        with pytest.raises(sluice.Unsupported, match=said):
            sluice.stream(model, session=session, chunk=CHUNK, group=group)
    with pytest.raises(ValueError, match="at least one row for each"):
        sluice.stream(tiny(), session=session, chunk=1, group=group)


def refused_calls(session, group) -> None:
    model = tiny()
    sluice.stream(model, session=session, chunk=CHUNK, group=group,
                  quiet=True)
    for more, said in (
            (dict(output_hidden_states=True), "output_hidden_states"),
            (dict(logits_to_keep=1), "all rows at once"),
            (dict(logits_to_keep=1, labels=None), "logits_to_keep")):
        with pytest.raises(sluice.Unsupported, match=said):
            model(**{**batch(), **more})


def evaluation(session, group) -> None:
    model, inputs = tiny().eval(), batch()
    ids = inputs["input_ids"]
    with torch.no_grad():
        loss = model(**inputs).loss
        words = model.generate(ids[:, :9], max_new_tokens=4, do_sample=False)
        stream = sluice.stream(model, session=session, chunk=CHUNK,
                               group=group, quiet=True)
        torch.testing.assert_close(model(**inputs).loss, loss)
        assert stream.stats().steps == 1
        assert torch.equal(words, model.generate(
            ids[:, :9], max_new_tokens=4, do_sample=False))
        assert stream.stats().steps == 1


def logprobs(session, group) -> None:
    """Of all rows, on every rank, with the whole sequence's gradients."""
    model, inputs = tiny(), batch()
    weights = torch.randn(2, 75, generator=torch.Generator().manual_seed(1))

    def found():
        model.zero_grad()
        out = sluice.logprobs(model, **inputs, entropy=True)
        sum(((o * weights).sum() for o in out)).backward()
        return out, {n: p.grad.clone() for n, p in model.named_parameters()}

    plain, expected = found()
    stream = sluice.stream(model, session=session, chunk=CHUNK, group=group,
                           quiet=True)
    ours, gradients = found()
    assert stream.stats().steps == 1
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    for gradient in gradients.values():
        dist.all_reduce(gradient, group=group)
        gradient /= dist.get_world_size(group)
    assert_same(Run(0.0, gradients), Run(0.0, expected))


def random_numbers(session, group) -> None:
    """Ranks that are seeded alike drop out different things, in the replay
    the same again, and are seeded alike afterwards."""
    model = tiny("gpt2", **{**LEARNED, "embd_pdrop": 0.5, "resid_pdrop": 0.5})
    sluice.stream(model, session=session, chunk=CHUNK, group=group,
                  check="always", quiet=True)
    dropped = []
    model.transformer.h[0].mlp.dropout.register_forward_hook(
        lambda m, a, out: dropped.append(out[0, :8] == 0))
    torch.manual_seed(5)
    model(**batch(1, 64)).loss.backward()
    mine = torch.stack(dropped).to(torch.uint8)
    assert torch.equal(mine[:4], mine[4:].flip(0))  # forward and replay
    everyones = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(everyones, mine, group=group)
    assert not torch.equal(*everyones)
    states = [torch.empty_like(torch.get_rng_state()) for _ in range(2)]
    dist.all_gather(states, torch.get_rng_state(), group=group)
    assert torch.equal(*states)


BEHAVIOURS = {f.__name__: f for f in (
    host_bytes, other_rows, other_chunks, refused_models, refused_calls,
    evaluation, logprobs, random_numbers)}


def work(rank: int, world: int, file: str, socket: str,
         names: list[str]) -> None:
    """One rank, in a process of its own."""
    dist.init_process_group("gloo", f"file://{file}", rank=rank,
                            world_size=world,
                            timeout=datetime.timedelta(seconds=120))
    with sluice.Session(socket, job="sp", rank=rank, world=world) as session:
        for name in names:
            print("case:", name, flush=True)
            if name in BEHAVIOURS:
                BEHAVIOURS[name](session, dist.group.WORLD)
            else:
                check(name, CASES[world][name], session)
            dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    world, file, socket, *names = sys.argv[1:]
    torch.set_num_threads(1)
    # Forked, because importing torch and transformers takes longer than this.
    ranks = [multiprocessing.get_context("fork").Process(
        target=work, args=(rank, int(world), file, socket, names))
        for rank in range(int(world))]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    main()
