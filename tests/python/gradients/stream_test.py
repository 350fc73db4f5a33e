"""A streamed model has the loss and the gradients of the same model
unstreamed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from models import Wrapper, assert_same, batch, run, streamed, tiny, unstreamed
from support import deep
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import sluice

MODELS = {
    "grouped heads": ("llama", {}),
    "one kv head": ("llama", dict(num_key_value_heads=1)),
    "biases, tied": ("qwen2", dict(tie_word_embeddings=True)),
    "q/k norms": ("qwen3", {}),
    "window": ("mistral", dict(sliding_window=24)),
    "window narrower than a chunk": ("mistral", dict(sliding_window=5)),
    "softcaps": ("gemma2", dict(
        sliding_window=24, query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0)),
    "sinks, experts": ("gpt_oss", dict(
        num_local_experts=4, num_experts_per_tok=2, sliding_window=24)),
    "latent attention": ("deepseek_v3", dict(
        q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4,
        qk_nope_head_dim=8, v_head_dim=8, head_dim=4, num_key_value_heads=4,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=24, first_k_dense_replace=1)),
    "learned positions": ("gpt2", dict(
        n_embd=32, n_layer=2, n_head=4, n_positions=512, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0)),
    "no rotary on some heads": ("gpt_neox", dict(
        attention_dropout=0.0, hidden_dropout=0.0)),
}


# parallel/, attention/ or skipped_products_test also cover the deep cases.
@pytest.mark.parametrize("name", [
    deep(name) if name in ("one kv head", "q/k norms") else name
    for name in MODELS])
def test_gradients_are_the_models_own(session, name):
    kind, changes = MODELS[name]
    model, inputs = tiny(kind, **changes), batch()
    softcapped = "attn_logit_softcapping" in changes or kind == "gpt_oss"
    other = None if softcapped else unstreamed(model, inputs, "sdpa")
    assert_same(streamed(model, session, inputs, 16),
                unstreamed(model, inputs), other)


@pytest.mark.parametrize("length,chunk", [
    deep(1, 1), (1, 16), (2, 1), deep(15, 16), (16, 16), (17, 16),
    deep(64, 16), deep(75, 74), (75, 1024)])
def test_any_length_and_chunk_is_exact(session, length, chunk):
    model, inputs = tiny(), batch(2, length)
    if length == 1:
        inputs["shift_labels"] = inputs["labels"]
    assert_same(streamed(model, session, inputs, chunk),
                unstreamed(model, inputs), unstreamed(model, inputs, "sdpa"))


def test_documents_and_padding_are_exact(session):
    positions = torch.cat([torch.arange(20), torch.arange(55)])
    model, inputs = tiny(), batch()
    # With a cache transformers does not separate the documents.
    inputs["use_cache"] = False
    inputs["position_ids"] = torch.stack([positions, torch.arange(75)])
    assert_same(streamed(model, session, inputs, 16),
                unstreamed(model, inputs))
    inputs = batch()
    inputs["attention_mask"] = torch.ones(2, 75, dtype=torch.long)
    inputs["attention_mask"][1, 60:] = 0
    inputs["labels"][1, 60:] = -100
    assert_same(streamed(model, session, inputs, 16),
                unstreamed(model, inputs))


def test_host_bytes_follow_the_formula(session):
    """DESIGN.md: L(e H + 2 e Hkv + 4 H + 4 heads) + 8 Hkv (1 - 1/u) per token.
    """
    layers, hidden, kv, heads, tokens, chunks = 3, 32, 16, 4, 128, 4
    model = tiny(num_hidden_layers=layers)
    stream = sluice.stream(model, session=session, chunk=tokens // chunks)
    run(model, batch(1, tokens))
    per_token = layers * (4 * hidden + 2 * 4 * kv + 4 * hidden + 4 * heads)
    expected = tokens * (per_token + 8 * kv * (1 - 1 / chunks))
    assert stream.stats().host_peak_bytes == expected


class Kept:
    """Holds a tensor that autograd saves."""

    def __init__(self, tensor):
        self.tensor = tensor


def test_autograds_memory_does_not_grow_with_layers(session):
    def kept(layers):
        model, found = tiny(num_hidden_layers=layers), weakref.WeakSet()
        stream = sluice.stream(model, session=session, chunk=32)
        parameters = {p.data_ptr() for p in model.parameters()}

        def keep(tensor):
            box = Kept(tensor)
            found.add(box)
            return box

        with torch.autograd.graph.saved_tensors_hooks(
                keep, lambda box: box.tensor):
            loss = model(**batch(1, 256)).loss
        storages = {box.tensor.untyped_storage().data_ptr():
                    box.tensor.untyped_storage().nbytes() for box in found
                    if box.tensor.data_ptr() not in parameters}
        loss.backward()
        stream.unstream()
        return sum(storages.values())
    assert kept(4) == kept(2)


def test_bf16_is_no_worse_than_plain(session):
    """Compares with eager attention and with SDPA. Sums the errors of many
    batches, because the error of a single batch varies by 10 %."""
    def error(found, exact):
        return sum(float((g.double() - exact.gradients[n].double()).norm())
                   ** 2 for n, g in found.gradients.items()) ** 0.5

    errors = dict.fromkeys(("ours", "eager", "sdpa"), 0.0)
    for kind, layers in (("llama", 2), ("qwen3", 2), ("llama", 4)):
        model = tiny(kind, num_hidden_layers=layers).to(torch.bfloat16)
        wide = tiny(kind, num_hidden_layers=layers)
        wide.load_state_dict(model.state_dict())  # the rounded weights
        batches = [batch(seed=seed) for seed in range(1, 9)]
        exact = [run(wide, inputs) for inputs in batches]
        for way in errors:
            stream = None
            if way == "ours":
                stream = sluice.stream(model, session=session, chunk=16)
            else:
                model.set_attn_implementation(way)
            errors[way] += sum(error(run(model, inputs), wanted)
                               for inputs, wanted in zip(batches, exact))
            if stream is not None:
                stream.unstream()
    assert errors["ours"] <= min(errors.values()), errors


def test_gradients_under_autocast_are_close(session):
    model, inputs = tiny(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        plain = unstreamed(model, inputs)
        ours = streamed(model, session, inputs, 16)
    for name, gradient in plain.gradients.items():
        apart = (ours.gradients[name] - gradient).norm()
        assert apart <= 0.05 * gradient.norm(), name


def test_a_head_is_probed_without_autocast(session):
    with torch.autocast("cpu", torch.bfloat16):
        stream = sluice.stream(tiny(), session=session, chunk=16)
    assert stream.head == "rows"


def test_frozen_parts_get_no_gradient(session):
    model, inputs = tiny(), batch()
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    model.model.layers[1].mlp.requires_grad_(False)
    expected = unstreamed(model, inputs)
    got = streamed(model, session, inputs, 16)
    assert got.gradients["model.layers.0.mlp.up_proj.weight"] is None
    assert_same(got, expected)


def test_two_forwards_may_precede_a_backward(session):
    model, first, second = tiny(), batch(seed=1), batch(length=50, seed=2)
    wanted = [unstreamed(model, inputs) for inputs in (first, second)]
    sluice.stream(model, session=session, chunk=16)
    losses = [model(**inputs).loss for inputs in (first, second)]
    sum(losses).backward()
    for name, parameter in model.named_parameters():
        both = sum(w.gradients[name] for w in wanted)
        assert (parameter.grad - both).norm() <= 1e-5 * both.norm(), name


def test_hooks_of_parameters_fire_once(session):
    model, fired = tiny(), {}
    sluice.stream(model, session=session, chunk=16)
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, n=name: fired.__setitem__(n, fired.get(n, 0) + 1))
    model(**batch()).loss.backward()
    assert fired == {n: 1 for n, _ in model.named_parameters()}


def test_every_replay_is_bit_identical(session):
    model = tiny("mixtral", num_local_experts=4, num_experts_per_tok=2)
    stream = sluice.stream(model, session=session, chunk=16, check="always")
    for seed in range(3):
        run(model, batch(seed=seed))
    assert stream.stats().steps == 3


def test_a_forward_without_backward_gives_its_host_memory_back(session):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16)
    loss = model(**batch()).loss
    assert stream.stats().host_bytes > 0
    del loss
    gc.collect()
    assert stream.stats().host_bytes == 0


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_frees_all_host_bytes(session, where):
    model, inputs = tiny(), batch()
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == (3 if where == "forward" else 8):
            raise KeyboardInterrupt

    hook = model.model.layers[1].mlp.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        run(model, inputs)
    hook.remove()
    gc.collect()
    assert stream.stats().host_bytes == 0
    assert_same(run(model, inputs), expected)


def test_generate_and_evaluation_are_unchanged(session):
    model = tiny().eval()
    ids = batch()["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits
        words = model.generate(ids[:1, :20], max_new_tokens=5,
                               do_sample=False)
        stream = sluice.stream(model, session=session, chunk=16)
        assert torch.equal(model(ids).logits, logits)
        assert torch.equal(model.generate(ids[:1, :20], max_new_tokens=5,
                                          do_sample=False), words)
        assert stream.stats().steps == 0
        streamed_ = model(ids, use_cache=False).logits
    assert stream.stats().steps == 1
    torch.testing.assert_close(streamed_, logits, rtol=1e-4, atol=1e-5)


def test_unstream_restores_the_model(session):
    model, inputs = tiny(), batch()
    before = {name: dict(vars(m)) for name, m in model.named_modules()}
    implementation = model.config._attn_implementation
    stream = sluice.stream(model, session=session, chunk=16)
    run(model, inputs)
    stream.unstream()
    stream.unstream()
    assert model.config._attn_implementation == implementation
    for name, module in model.named_modules():
        assert vars(module).keys() == before[name].keys(), name
    assert_same(run(model, inputs), unstreamed(model, inputs))


def test_stream_touches_no_gradient_and_no_random_state(session):
    model = tiny()
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    state = torch.get_rng_state()
    sluice.stream(model, session=session, chunk=16)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.model.layers[0].mlp.up_proj.weight.grad is None
    assert (model.lm_head.weight.grad == 1).all()


def test_arguments_of_layers_get_their_gradient_once(session):
    class Scaled(Wrapper):
        def forward(self, hidden_states, scale=None, **kwargs):
            return self.inner(hidden_states, **kwargs) * scale

    def given(model):
        leaf = torch.full((32,), 1.5, requires_grad=True)
        fired = []
        leaf.register_post_accumulate_grad_hook(lambda _: fired.append(1))
        for layer in model.model.layers:
            layer.register_forward_pre_hook(
                lambda m, a, k: (a, {**k, "scale": leaf}), with_kwargs=True)
        return leaf, fired

    inputs, found = batch(), []
    for wanted in (False, True):
        model = tiny()
        for i in range(2):
            model.model.layers[i] = Scaled(model.model.layers[i])
        leaf, fired = given(model)
        if wanted:
            sluice.stream(model, session=session, chunk=16)
        run(model, inputs)
        assert fired == [1]
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-7)


class AsksTorch(Wrapper):
    """Llama's attention, by a call of torch's scaled_dot_product_attention."""

    def __init__(self, inner, **asked):
        super().__init__(inner)
        self.asked, self.layer_idx = asked, inner.layer_idx

    def forward(self, hidden_states, position_embeddings, **_):
        shape = *hidden_states.shape[:2], -1, self.inner.head_dim
        q, k, v = (project(hidden_states).view(shape).transpose(1, 2)
                   for project in (self.inner.q_proj, self.inner.k_proj,
                                   self.inner.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        o = F.scaled_dot_product_attention(q, k, v, enable_gqa=True,
                                           **self.asked)
        return self.inner.o_proj(o.transpose(1, 2).flatten(2)), None


def asking_torch(**asked):
    model = tiny()
    model.set_attn_implementation("sdpa")
    for layer in model.model.layers:
        layer.self_attn = AsksTorch(layer.self_attn, **asked)
    return model.train()


@pytest.mark.parametrize("length,chunk", [(75, 16), (33, 32), deep(75, 128)])
def test_attention_called_by_a_layer_is_streamed(session, length, chunk):
    model, inputs = asking_torch(is_causal=True), batch(2, length)
    assert_same(streamed(model, session, inputs, chunk),
                unstreamed(model, inputs))


def test_unsupported_attention_calls_are_refused_or_run_whole(session):
    with pytest.raises(sluice.Unsupported, match="dropout|registry"):
        sluice.stream(asking_torch(is_causal=True, dropout_p=0.1),
                      session=session, chunk=16)
    model, inputs = asking_torch(), batch()
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    assert "both directions" in stream.whole[0][0].why
    assert_same(run(model, inputs), expected)
