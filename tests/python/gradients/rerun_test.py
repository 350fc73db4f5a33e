"""With rerun=, backward recomputes attention of the first chunks. Gradients
are bit-identical, and the host holds fewer bytes."""

from __future__ import annotations

import math

import pytest
import torch
from models import Run, assert_same, batch, run, streamed, tiny, unstreamed
from support import deep

import sluice

MODELS = {
    "grouped heads": ("llama", {}),
    "window": ("mistral", dict(sliding_window=24)),
    "softcaps": ("gemma2", dict(
        sliding_window=24, query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0)),
    "sinks, experts": ("gpt_oss", dict(
        num_local_experts=4, num_experts_per_tok=2, sliding_window=24)),
    "router losses": ("mixtral", dict(
        num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.3,
        output_router_logits=True)),
    "dropout": ("gpt2", dict(
        n_embd=32, n_layer=2, n_head=4, n_positions=512, attn_pdrop=0.0,
        resid_pdrop=0.1, embd_pdrop=0.1)),
}


def seeded(model, session, inputs, **options) -> Run:
    torch.manual_seed(7)
    return streamed(model, session, inputs, 16, quiet=True, check="always",
                    **options)


def assert_same_bits(got: Run, expected: Run) -> None:
    assert got.loss == expected.loss
    for name, gradient in expected.gradients.items():
        assert torch.equal(got.gradients[name], gradient), name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("part, hidden", [
    (0.25, "device"), deep(0.5, "device"), (1, "host")])
def test_gradients_are_those_without_rerun(session, name, part, hidden):
    kind, changes = MODELS[name]
    model, inputs = tiny(kind, **changes), batch()
    expected = seeded(model, session, inputs, hidden=hidden)
    got = seeded(model, session, inputs, hidden=hidden, rerun=part)
    assert_same_bits(got, expected)
    if name == "grouped heads":
        assert_same(got, unstreamed(model, inputs))


def test_packed_documents_are_exact(session):
    model, inputs = tiny(), batch()
    inputs["use_cache"] = False
    inputs["position_ids"] = torch.cat(
        [torch.arange(20), torch.arange(55)]).expand(2, -1)
    assert_same(streamed(model, session, inputs, 16, rerun=0.5),
                unstreamed(model, inputs))


def test_kept_products_and_two_forwards_are_exact(session):
    model, first, second = tiny(), batch(seed=1), batch(length=50, seed=2)
    wanted = [unstreamed(model, inputs) for inputs in (first, second)]
    sluice.stream(model, session=session, chunk=16, rerun=0.5,
                  policy={"mlp.*": {"keep": 0.25, "swap": 0.5}})
    sum(model(**inputs).loss for inputs in (first, second)).backward()
    for name, parameter in model.named_parameters():
        both = sum(w.gradients[name] for w in wanted)
        assert (parameter.grad - both).norm() <= 1e-5 * both.norm(), name


@pytest.mark.parametrize("part", [0.25, 0.6, 1])
def test_host_bytes_follow_the_formula(session, part):
    """DESIGN.md: L e H + (L (1 - f) + f) (2 e Hkv + e H + 4 heads) + 8 Hkv
    (1 - 1/u) per token."""
    layers, hidden, kv, heads, tokens, chunks = 3, 32, 16, 4, 128, 4
    model = tiny(num_hidden_layers=layers)
    stream = sluice.stream(model, session=session, chunk=tokens // chunks,
                           rerun=part)
    run(model, batch(1, tokens))
    f = math.ceil(part * chunks) / chunks
    attended = 2 * 4 * kv + 4 * hidden + 4 * heads
    assert stream.stats().host_peak_bytes == tokens * (
        layers * 4 * hidden + (layers * (1 - f) + f) * attended
        + 8 * kv * (1 - 1 / chunks))


def test_parts_outside_0_to_1_are_refused(session):
    for part in (-0.1, 1.5, "half"):
        with pytest.raises(sluice.Invalid, match="rerun.*0 to 1"):
            sluice.stream(tiny(), session=session, rerun=part)
