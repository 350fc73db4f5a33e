"""Keeping, swapping or recomputing products of a layer changes no bit."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from models import Wrapper, assert_same, batch, run, tiny, unstreamed, wrap_mlps
from support import deep
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import sluice
from sluice.plan.policy import Action, Policy, Share
from sluice.plan.products import Products as LayerProducts

CHUNK = 16


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default,
                               torch.ops.aten.addmm.default,
                               torch.ops.aten.bmm.default,
                               torch.ops.aten._grouped_mm.default)
        return func(*args, **(kwargs or {}))


def gradients(session, model, policy, inputs=None):
    """Runs one streamed step; returns (the run, number of products, stats)."""
    stream = sluice.stream(model, session=session, chunk=CHUNK, policy=policy,
                           quiet=True)
    try:
        with Products() as products:
            made = run(model, inputs or batch())
        stats = stream.stats()
        assert stats.host_bytes == 0
        return made, products.count, stats
    finally:
        stream.unstream()


RECOMPUTED = {}  # kind -> (run, number of products) with policy "recompute"


def recomputed(session, kind, make):
    if kind not in RECOMPUTED:
        RECOMPUTED[kind] = gradients(session, make(), "recompute")[:2]
    return RECOMPUTED[kind]


def assert_bitwise(got, expected):
    assert got.loss == expected.loss
    for name, wanted in expected.gradients.items():
        gradient = got.gradients[name]
        assert gradient is wanted or torch.equal(gradient, wanted), name


ALL = {"*": {"keep": 1.0}}
SWAPPED = {"*": {"swap": 1.0}}
MIXED = {"mlp.up_proj": {"keep": 0.25, "swap": 0.5}, "mlp.*": {"swap": 0.4},
         "self_attn.q_proj.weight": {"keep": 0.6}}


BIASES = {"attention_bias": True, "mlp_bias": True}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 16}


@pytest.mark.parametrize("kind, changes, policy", [
    *(("llama", {}, policy) for policy in (ALL, SWAPPED, MIXED)),
    *((deep if policy is not MIXED else lambda *case: case)(*kind, policy)
      for kind in (("llama", BIASES), ("gpt2", {"attn_pdrop": 0.0}),
                   ("qwen3_moe", EXPERTS))
      for policy in (ALL, SWAPPED, MIXED))])
def test_a_policy_changes_no_bit(session, kind, changes, policy):
    def make():
        return tiny(kind, **changes)

    if kind == "gpt2":
        policy = {name.replace("mlp.up_proj", "mlp.c_fc").replace(
            "self_attn.q_proj.weight", "attn.c_attn.weight"): share
            for name, share in policy.items()}
    if kind == "qwen3_moe" and policy is MIXED:
        policy = {"mlp.*": {"keep": 0.3, "swap": 0.3}}
    again, computed = recomputed(session, (kind, *changes), make)
    got, products, _ = gradients(session, make(), policy)
    assert_bitwise(got, again)
    assert products < computed


def test_stored_products_are_not_recomputed(session):
    """There are seven products per layer and chunk: q, k, v, o, gate, up,
    down."""
    again, computed = recomputed(session, ("llama",), tiny)
    _, kept, _ = gradients(session, tiny(), ALL)
    _, swapped, _ = gradients(session, tiny(), SWAPPED)
    assert computed - kept == computed - swapped == 2 * 5 * 7
    _, some, _ = gradients(session, tiny(), {"mlp.up_proj": {"swap": 0.6}})
    assert computed - some == 2 * 3


def held(session, policy):
    """Returns the host bytes between forward and backward."""
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=CHUNK, policy=policy,
                           quiet=True)
    out = model(**batch())
    held = stream.stats().host_bytes
    out.loss.backward()
    stream.unstream()
    return held


def test_host_bytes_of_swapped_products_are_exact(session):
    rows, width = 2 * 75, 48  # width of the MLP
    computed = held(session, "recompute")
    assert held(session, {"mlp.up_proj": {"keep": 1.0}}) == computed
    assert held(session, {"mlp.up_proj": {"swap": 1.0}}) == (
        computed + 2 * rows * width * 4)
    assert held(session, {"mlp.up_proj": {"swap": 0.6}}) == (
        computed + 2 * 2 * (11 + 16 + 16) * width * 4)


class Written(Wrapper):
    """Writes a product in place, through a view that torch does not track."""

    def forward(self, x):
        up = self.inner.up_proj(x)
        with torch.no_grad():
            up.view(-1, up.shape[-1]).mul_(0.5)
        return self.inner.down_proj(up)


class WrittenByOut(Written):
    def forward(self, x):
        up = self.inner.up_proj(x)
        with torch.no_grad():
            torch.mul(up, 0.5, out=up)
        return self.inner.down_proj(up)


@pytest.mark.parametrize("kind, policy", [
    (Written, ALL), (Written, SWAPPED), (WrittenByOut, ALL)])
def test_a_product_that_is_written_in_place_is_computed_again(session, kind,
                                                              policy):
    again, computed = recomputed(session, kind, lambda: wrap_mlps(kind))
    got, products, _ = gradients(session, wrap_mlps(kind), policy)
    assert_bitwise(got, again)
    # 5 of 7 products are stored: gate is unused, and up is written.
    assert computed - products == 2 * 5 * 5


class Reduced(Written):
    """Reduces a product over ranks in place."""

    def forward(self, x):
        up = self.inner.up_proj(x)
        dist.all_reduce(up.detach())
        return self.inner.down_proj(up)


@pytest.mark.parametrize("policy", [ALL, SWAPPED])
def test_a_product_that_a_collective_writes_is_computed_again(
        session, policy, tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0,
                            world_size=1)
    try:
        _, computed = recomputed(session, Reduced, lambda: wrap_mlps(Reduced))
        _, products, _ = gradients(session, wrap_mlps(Reduced), policy)
    finally:
        dist.destroy_process_group()
    # 5 of 7 products are stored: gate is unused, and up is written.
    assert computed - products == 2 * 5 * 5


@pytest.mark.parametrize("policy", [ALL, SWAPPED])
def test_under_autocast_weights_are_identified_by_their_casts(session, policy):
    def cast(policy):
        with torch.autocast("cpu", torch.bfloat16):
            return gradients(session, tiny(), policy)

    again, computed, _ = cast("recompute")
    got, products, _ = cast(policy)
    assert_bitwise(got, again)
    assert computed - products == 2 * 5 * 7


def test_both_products_of_a_weight_are_stored(session):
    def twice():
        model = tiny()
        for layer in model.model.layers:
            layer.mlp.up_proj = layer.mlp.gate_proj
        return model

    again, computed, _ = gradients(session, twice(), "recompute")
    got, products, _ = gradients(session, twice(), ALL)
    assert_bitwise(got, again)
    assert computed - products == 2 * 5 * 7


def test_host_memory_is_freed_without_a_backward_and_after_an_exception(
        session):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=CHUNK,
                           policy={"*": {"keep": 0.2, "swap": 0.6}})
    out = model(**batch())
    assert stream.stats().host_bytes > 0
    del out
    assert stream.stats().host_bytes == 0
    model.model.layers[1].mlp.register_forward_pre_hook(fails_once())
    with pytest.raises(KeyboardInterrupt):
        model(**batch()).loss.backward()
    assert stream.stats().host_bytes == 0
    stream.unstream()


def fails_once():
    calls = []

    def hook(module, args):
        calls.append(1)
        if len(calls) == 8:  # in the replay of a chunk
            raise KeyboardInterrupt
    return hook


def test_gradients_are_the_plain_models(session):
    model = tiny()
    expected = unstreamed(model, batch())
    got, _, _ = gradients(session, model, MIXED)
    assert_same(got, expected, unstreamed(model, batch(), "sdpa"))


def test_evaluation_swaps_no_product(session):
    model = tiny().eval()
    stream = sluice.stream(model, session=session, chunk=CHUNK, policy=SWAPPED)
    with torch.no_grad():
        model(**batch(), use_cache=False)
    per_layer = 2 * 75 * 2 * 2 * 8 * 4  # k and v only
    assert stream.stats().host_peak_bytes <= 2 * per_layer + (
        2 * 75 * 4 * (8 + 1) * 4)
    stream.unstream()


# --- policies ----------------------------------------------------------------

def test_shares_are_whole_chunks_and_the_last_chunks_are_kept():
    share = Share(keep=0.25, swap=0.5)
    assert [share.action(c, 8) for c in range(8)] == (
        [Action.RECOMPUTE] * 2 + [Action.SWAP] * 4 + [Action.KEEP] * 2)
    assert Share(1.0).action(0, 1) is Action.KEEP
    assert Share(0.0, 1.0).action(0, 3) is Action.SWAP
    for chunks in range(1, 20):
        for keep in (0, 0.1, 0.5, 0.9, 1):
            stored = [Share(keep, 1 - keep).action(c, chunks)
                      for c in range(chunks)]
            assert Action.RECOMPUTE not in stored


@pytest.mark.parametrize("policy, words", [
    ("all", "policy = 'all'"),
    ({"mlp.*": {"hold": 1}}, "'hold': 1.*'keep'"),
    ({"mlp.*": {"keep": 1.5}}, "keep = 1.5: between 0 and 1"),
    ({"mlp.*": {"keep": 0.6, "swap": 0.6}}, r"keep \+ swap = 1.2"),
    ({"ffn.*": {"keep": 1}}, "'ffn.*' fits no weight .* mlp.up_proj.weight")])
def test_an_invalid_policy_is_refused_in_one_line(session, policy, words):
    with pytest.raises(ValueError, match=words) as error:
        sluice.stream(tiny(), session=session, policy=policy)
    assert "\n" not in str(error.value)


def test_the_first_matching_pattern_applies():
    policy = Policy.of({"mlp.up_proj": {"keep": 1.0}, "mlp.*": {"swap": 1.0}})
    assert policy.share("mlp.up_proj.weight") == Share(1.0)
    assert policy.share("mlp.down_proj.weight") == Share(0.0, 1.0)
    assert policy.share("self_attn.q_proj.weight") == Share()


def test_a_modules_pattern_matches_peft_submodules():
    policy = Policy.of({"self_attn.?_proj": {"swap": 1.0}})
    for name in ("weight", "base_layer.weight", "lora_A.default.weight"):
        assert policy.share("self_attn.q_proj." + name) == Share(0.0, 1.0)
    assert policy.share("mlp.up_proj.weight") == Share()


def test_products_are_identified_by_weight_not_by_address():
    """FSDP2 frees a weight's memory and allocates it elsewhere. Another tensor
    at the old address is not taken for the weight."""
    layer = nn.Linear(4, 4, bias=False)
    found = LayerProducts(layer)
    x, weight = torch.ones(4, 4), layer.weight.detach()
    memory = weight.untyped_storage()
    there = memory.data_ptr()
    memory.resize_(0)
    others = [torch.ones(4, 4) for _ in range(100)]
    memory.resize_(64)
    mm = torch.ops.aten.mm.default
    assert found.of(mm, (x, layer.weight.t())).weight == "weight"
    assert memory.data_ptr() != there
    assert [o for o in others if found.of(mm, (x, o))] == []
