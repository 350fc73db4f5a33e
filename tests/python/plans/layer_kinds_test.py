"""Tests `policy="plan"` of a model with several kinds of layers."""

from __future__ import annotations

import torch
from models import assert_same, batch, run, tiny, unstreamed

import sluice
from sluice.plan.planned import BASE
from sluice.proof.captured_calls import kind_names

CHUNK = 16
DENSE, MOE = "Qwen3MoeDecoderLayer.0", "Qwen3MoeDecoderLayer.1"


def mixed(**changes):
    """Returns a model with a dense layer and two layers with experts."""
    return tiny("qwen3_moe", num_hidden_layers=3, mlp_only_layers=[0],
                num_experts=4, num_experts_per_tok=2,
                moe_intermediate_size=16, head_dim=8, **changes)


def planned(session, model, steps=3):
    stream = sluice.stream(model, session=session, chunk=CHUNK, policy="plan",
                           quiet=True)
    return stream, [run(model, batch()) for _ in range(steps)]


def asked_of(session, model, monkeypatch):
    """Returns the profile that a stream of the model sends."""
    seen = []
    monkeypatch.setattr(
        type(session), "plan", lambda self, given, **_: seen.append(
            given) or {"infeasible": "only looking"})
    stream, _ = planned(session, model)
    stream.unstream()
    [given] = seen
    return given


def test_a_kind_is_named_by_its_class_and_first_layer():
    names = list(kind_names(mixed().model.layers).values())
    assert names == [DENSE, MOE, MOE]


def test_each_kind_is_measured_by_itself(session, monkeypatch):
    given = asked_of(session, mixed(), monkeypatch)
    assert [(k["name"], k["layers"]) for k in given["kinds"]] == [
        (DENSE, 1), (MOE, 2)]
    assert "layers" not in given
    for kind in given["kinds"]:
        assert 0 < kind["forward_layer_seconds"]
        assert 0 < kind["backward_layer_seconds"]
        assert 0 < kind["forward_d2h_fixed"]
    sizes = {(c["kind"], c["name"]): c["bytes_per_layer"]
             for c in given["classes"]}
    rows = 2 * 75
    assert sizes[DENSE, "mlp.up_proj.weight"] == rows * 48 * 4
    assert (MOE, "mlp.up_proj.weight") not in sizes
    for kind in (DENSE, MOE):
        assert sizes[kind, BASE] == sizes[DENSE, BASE]
        assert sizes[kind, "self_attn.k_proj.weight"] == rows * 16 * 4


def test_layers_without_a_backward_are_a_kind_that_keeps_nothing(
        session, monkeypatch):
    model = tiny(num_hidden_layers=3)
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    given = asked_of(session, model, monkeypatch)
    frozen, rest = given["kinds"]
    assert frozen["name"] == "LlamaDecoderLayer.0.frozen"
    assert (frozen["layers"], rest["layers"]) == (1, 2)
    assert frozen["forward_layer_seconds"] > 0
    assert frozen["backward_layer_seconds"] == 0
    assert frozen["backward_d2h_fixed"] == frozen["backward_h2d_fixed"] == 0
    assert {c["kind"] for c in given["classes"]} == {rest["name"]}


def test_a_plans_fractions_apply_to_their_kind(session, monkeypatch):
    """If one kind swaps everything and the other kind nothing, the host bytes
    after a forward grow by exactly the bytes of the first kind."""
    def host_bytes(swapped):
        def plan(self, given, **_):
            classes = [{**c, "keep": 0.0, "recompute": 0.0,
                        "swap": float(c["name"] == BASE
                                      or c["kind"] in swapped)}
                       for c in given["classes"]]
            return {"infeasible": "", "ranks": [{
                "rank": self.rank, "classes": classes, "host_bytes": 1 << 20,
                "alpha_limited_by": "none"}]}
        monkeypatch.setattr(type(session), "plan", plan)
        model = mixed()
        stream, runs = planned(session, model)
        held = model(**batch())
        held_bytes = stream.stats().host_bytes
        held.loss.backward()
        sizes = {}
        for c in stream.plan["classes"]:
            if c["name"] != BASE:
                sizes[c["kind"]] = (sizes.get(c["kind"], 0)
                                    + c["bytes_per_layer"])
        for made in runs:
            for name, gradient in runs[0].gradients.items():
                assert torch.equal(made.gradients[name], gradient)
        stream.unstream()
        return held_bytes, sizes, runs[-1]

    nothing, sizes, made = host_bytes(())
    assert_same(made, unstreamed(mixed(), batch()),
                unstreamed(mixed(), batch(), "sdpa"))
    assert host_bytes((DENSE,))[0] - nothing == sizes[DENSE]
    assert host_bytes((MOE,))[0] - nothing == 2 * sizes[MOE]


def test_the_daemon_plans_each_kind(session):
    stream, runs = planned(session, mixed(), steps=4)
    kinds = {c["kind"] for c in stream.plan["classes"]}
    assert kinds == {DENSE, MOE}
    assert all(c["why"] for c in stream.plan["classes"])
    assert any(c["swap"] > 0 for c in stream.plan["classes"]
               if c["name"] != BASE), "nothing swapped on a link without limit"
    for made in runs:
        for name, gradient in runs[0].gradients.items():
            assert torch.equal(made.gradients[name], gradient)
    assert stream.stats().host_peak_bytes <= stream.plan["host_bytes"]
    stream.unstream()
