"""Losses that balance experts, made of the logits of all layers' routers."""

from __future__ import annotations

import gc

import pytest
import sluice
import torch
from models import assert_same, batch, run, streamed, tiny, unstreamed
from sluice.adapters import head_routers

EXPERTS = dict(num_experts_per_tok=2, router_aux_loss_coef=0.3)
KINDS = {
    "mixtral": ("mixtral", dict(num_local_experts=4)),
    "sinks": ("gpt_oss", dict(num_local_experts=4, sliding_window=24)),
    "dense layers among them": ("qwen3_moe", dict(
        num_experts=4, moe_intermediate_size=24, num_hidden_layers=3,
        mlp_only_layers=[1])),
    "shared experts": ("qwen2_moe", dict(
        num_experts=4, moe_intermediate_size=24,
        shared_expert_intermediate_size=24)),
}


def asked(inputs=None):
    return {**(inputs or batch()), "output_router_logits": True}


def padded():
    inputs = batch()
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 60:] = 0
    inputs["labels"][1, 60:] = -100
    return inputs


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_models_own(session, name):
    kind, changes = KINDS[name]
    model = tiny(kind, **EXPERTS, **changes)
    plain = unstreamed(model, batch())
    for inputs in (asked(), asked(padded())):
        expected = unstreamed(model, inputs)
        assert_same(streamed(model, session, inputs, quiet=True,
                             check="always"), expected)
    # It is a loss that counts.
    assert abs(unstreamed(model, asked()).loss - plain.loss) > 0.1


@pytest.mark.parametrize("hidden", ["device", "host"])
def test_as_the_config_says(session, hidden):
    model = tiny("mixtral", num_local_experts=4, output_router_logits=True,
                 **EXPERTS)
    inputs = batch()
    assert_same(streamed(model, session, inputs, quiet=True, check="always",
                         hidden=hidden), unstreamed(model, inputs))
    off = {**inputs, "output_router_logits": False}
    assert_same(streamed(model, session, off, quiet=True),
                unstreamed(model, off))


def test_logits_and_the_loss_alone(session):
    model = tiny("mixtral", num_local_experts=4, **EXPERTS)
    expected = model(**asked())
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    with torch.no_grad():
        found = model(**asked())
    for ours, theirs in zip(found.router_logits, expected.router_logits):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.aux_loss, expected.aux_loss)
    model.zero_grad()
    expected.aux_loss.backward()
    wanted = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    model(**asked()).aux_loss.backward()
    for name, parameter in model.named_parameters():
        if wanted[name] is not None and float(wanted[name].norm()):
            torch.testing.assert_close(parameter.grad, wanted[name],
                                       rtol=1e-4, atol=1e-6)
    gc.collect()
    assert stream.stats().host_bytes == 0


@pytest.mark.parametrize("head", ["rows", "whole"])
def test_head_and_loss_run_by_rows(session, head):
    model = tiny("mixtral", num_local_experts=4, **EXPERTS)
    expected = unstreamed(model, asked())
    sluice.stream(model, session=session, chunk=16, quiet=True, head=head)
    assert_same(run(model, asked()), expected)
    logits = model(**asked()).logits
    if head == "whole":
        assert logits.shape[:2] == (2, 75)
    else:
        with pytest.raises(sluice.Unsupported):
            logits + 1


def test_a_loss_that_is_not_a_sum_is_refused(session, monkeypatch):
    own = head_routers._added
    monkeypatch.setattr(head_routers, "_added", lambda *given: tuple(
        1.01 * part for part in own(*given)))
    model = tiny("mixtral", num_local_experts=4, **EXPERTS)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(sluice.Unsupported, match="not added.*head=\"whole\""):
        run(model, asked())
    stream.head = "whole"
    assert_same(run(model, asked()), unstreamed(tiny(
        "mixtral", num_local_experts=4, **EXPERTS), asked()))


def test_what_has_no_router_is_refused(session):
    model = tiny()
    sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(sluice.Unsupported, match="not known which modules"):
        model.model(batch()["input_ids"], output_router_logits=True)
    assert run(model, batch()).loss > 0
