"""Tests load-balancing losses of experts, which models compute from the router
logits of all layers."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from models import assert_same, batch, run, streamed, tiny, unstreamed
from support import deep
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.models.mixtral import modeling_mixtral as mixtral

import sluice
from sluice.hf import head_loss

EXPERTS = dict(num_experts_per_tok=2, router_aux_loss_coef=0.3)
KINDS = {
    "mixtral": ("mixtral", dict(num_local_experts=4)),
    "sinks": ("gpt_oss", dict(num_local_experts=4, sliding_window=24)),
    "some dense layers": ("qwen3_moe", dict(
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


@pytest.mark.parametrize("name", [
    deep(name) if name == "shared experts" else name for name in KINDS])
def test_gradients_are_the_models_own(session, name):
    kind, changes = KINDS[name]
    model = tiny(kind, **EXPERTS, **changes)
    plain = unstreamed(model, batch())
    for inputs in (asked(), asked(padded())):
        expected = unstreamed(model, inputs)
        assert_same(streamed(model, session, inputs, quiet=True,
                             check="always"), expected)
    # The router loss is large enough to matter.
    assert abs(unstreamed(model, asked()).loss - plain.loss) > 0.1


@pytest.mark.parametrize("hidden", ["device", "host"])
def test_gradients_of_whole_layers_are_the_models_own(session, hidden):
    model = tiny("mixtral", num_local_experts=4, **EXPERTS)
    for layer in model.model.layers:
        layer.post_attention_layernorm.register_forward_hook(
            lambda module, args, y: y + y.roll(1, 1))
    expected = unstreamed(model, asked())
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           check="always", hidden=hidden)
    assert sum(count for _, count in stream.whole) == 2
    assert_same(run(model, asked()), expected)


@pytest.mark.parametrize("hidden", ["device", "host"])
def test_router_logits_requested_by_the_config_are_exact(session, hidden):
    model = tiny("mixtral", num_local_experts=4, output_router_logits=True,
                 **EXPERTS)
    inputs = batch()
    assert_same(streamed(model, session, inputs, quiet=True, check="always",
                         hidden=hidden), unstreamed(model, inputs))
    off = {**inputs, "output_router_logits": False}
    assert_same(streamed(model, session, off, quiet=True),
                unstreamed(model, off))


def test_router_logits_and_their_loss_are_exact(session):
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
def test_router_losses_are_exact_with_each_head(session, head):
    model = tiny("mixtral", num_local_experts=4, **EXPERTS)
    twin = copy.deepcopy(model)
    sluice.stream(model, session=session, chunk=16, quiet=True, head=head)
    assert_same(run(model, asked()), run(twin, asked()))
    torch.testing.assert_close(model(**asked()).logits + 0,
                               twin(**asked()).logits, rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_not_a_sum_is_refused(session, monkeypatch):
    own = head_loss._added
    monkeypatch.setattr(head_loss, "_added", lambda *given: tuple(
        1.01 * part for part in own(*given)))
    model = tiny("mixtral", num_local_experts=4, **EXPERTS)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(sluice.Unsupported, match="not added.*head=\"whole\""):
        run(model, asked())
    stream.head = "whole"
    assert_same(run(model, asked()), unstreamed(tiny(
        "mixtral", num_local_experts=4, **EXPERTS), asked()))


class OlderLayer(mixtral.MixtralDecoderLayer):
    """Returns its router's logits on request, as layers of transformers 4.57
    do."""

    def forward(self, hidden_states, output_router_logits=False, **kwargs):
        said = []
        hook = self.mlp.gate.register_forward_hook(
            lambda module, args, out: said.append(out[0]))
        y = super().forward(hidden_states, **kwargs)
        hook.remove()
        if self.says_nothing:
            said = [None]
        return (y, *said) if output_router_logits else (y,)


class OlderModel(mixtral.MixtralModel):
    """Collects the router logits that its layers return."""

    _can_record_outputs = {}
    first = False  # whether it collects hidden states as router logits

    def forward(self, input_ids=None, attention_mask=None, position_ids=None,
                past_key_values=None, inputs_embeds=None, use_cache=None,
                output_router_logits=None, **kwargs):
        if output_router_logits is None:
            output_router_logits = self.config.output_router_logits
        x = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1])[None]
        mask = create_causal_mask(
            config=self.config, inputs_embeds=x, past_key_values=None,
            attention_mask=attention_mask, position_ids=position_ids)
        tables = self.rotary_emb(x, position_ids=position_ids)
        logits = () if output_router_logits else None
        for layer in self.layers:
            out = layer(x, attention_mask=mask, position_embeddings=tables,
                        position_ids=position_ids,
                        output_router_logits=output_router_logits)
            x = out[0]
            if output_router_logits and out[-1] is not None:
                logits += (out[0] if self.first else out[-1],)
        return MoeModelOutputWithPast(last_hidden_state=self.norm(x),
                                      router_logits=logits)


def older(**changes):
    model = tiny("mixtral", num_local_experts=4, num_hidden_layers=3,
                 **EXPERTS, **changes)
    model.model.__class__ = OlderModel
    for layer in model.model.layers:
        layer.__class__ = OlderLayer
        layer.says_nothing = layer is model.model.layers[1]
    return model


@pytest.mark.parametrize("options", [
    {}, {"hidden": "host"}, {"head": "whole"}], ids=str)
def test_router_logits_that_layers_return_are_exact(session, options):
    model, inputs = older(), padded()
    plain = unstreamed(model, inputs)
    expected = unstreamed(model, asked(inputs))
    assert abs(expected.loss - plain.loss) > 0.1
    for given, wanted in ((asked(inputs), expected), (inputs, plain)):
        assert_same(streamed(model, session, given, quiet=True,
                             check="always", **options), wanted)
    model.config.output_router_logits = True
    assert_same(streamed(model, session, inputs, quiet=True, check="always",
                         **options), expected)


def test_router_logits_of_unknown_modules_are_refused(session):
    model = older()
    model.model.first = True
    sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(sluice.Unsupported, match="not known which modules"):
        run(model, asked())
    assert_same(run(model, batch()), unstreamed(older(), batch()))


def test_router_logits_of_a_model_without_routers_are_refused(session):
    model = tiny()
    sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(sluice.Unsupported, match="not known which modules"):
        model.model(batch()["input_ids"], output_router_logits=True)
    assert run(model, batch()).loss > 0
