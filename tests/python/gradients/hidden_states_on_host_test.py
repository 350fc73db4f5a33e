"""With hidden states in host memory, results are the same, no [B, S, H] tensor
is on the device, and embeddings and heads run by chunks."""

from __future__ import annotations

import gc

import pytest
import torch
from models import Run, assert_same, batch, run, streamed, tiny, unstreamed
from support import deep
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import sluice

ALWAYS = dict(quiet=True, check="always")
KINDS = {
    "grouped heads": ("llama", {}),
    "tied": ("qwen2", dict(tie_word_embeddings=True)),
    "scaled embedding, softcaps": ("gemma2", dict(
        sliding_window=24, query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0)),
    "learned positions": ("gpt2", dict(
        n_embd=32, n_layer=2, n_head=4, n_positions=512, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0)),
    "learned positions, counted from the mask": ("opt", dict(
        ffn_dim=48, dropout=0.0, word_embed_proj_dim=32)),
    "experts": ("mixtral", dict(num_local_experts=4, num_experts_per_tok=2)),
}


@pytest.fixture(params=["device", "host"])
def hidden(request):
    return request.param


# stream_test covers hidden states on the device.
in_host = pytest.mark.parametrize("hidden", [deep("device"), "host"])


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_models_own(session, name):
    kind, changes = KINDS[name]
    model, inputs = tiny(kind, **changes), batch()
    got = streamed(model, session, inputs, **ALWAYS, hidden="host")
    other = None if kind == "gemma2" else unstreamed(model, inputs, "sdpa")
    assert_same(got, unstreamed(model, inputs), other)


class Backwards(nn.ModuleList):
    """Returns a slice, which the decoder takes, in reverse order."""

    def __getitem__(self, at):
        return reversed(self) if isinstance(at, slice) else super(
            ).__getitem__(at)


def test_the_first_layer_that_runs_need_not_be_number_0(session):
    model = tiny()
    model.model.layers = Backwards(model.model.layers)
    got = streamed(model, session, batch(), **ALWAYS, hidden="host")
    assert_same(got, unstreamed(model, batch()))


@in_host
def test_documents_and_padding_are_exact(session, hidden):
    positions = torch.cat([torch.arange(20), torch.arange(55)])
    for kind, changes in (KINDS["grouped heads"], KINDS["learned positions"]):
        model, inputs = tiny(kind, **changes), batch()
        inputs["use_cache"] = False
        inputs["position_ids"] = torch.stack([positions, torch.arange(75)])
        assert_same(streamed(model, session, inputs, **ALWAYS, hidden=hidden),
                    unstreamed(model, inputs))
        inputs = batch()
        inputs["attention_mask"] = torch.ones(2, 75, dtype=torch.long)
        inputs["attention_mask"][1, 60:] = 0
        inputs["labels"][1, 60:] = -100
        assert_same(streamed(model, session, inputs, **ALWAYS, hidden=hidden),
                    unstreamed(model, inputs))


def test_host_bytes_follow_the_formula(session):
    """DESIGN.md: L(e H + 2 e Hkv + 4 H + 4 heads) + max(e H, (e H + 8 Hkv)
    (1 - 1/u)) per token."""
    layers, width, heads, tokens, chunks = 3, 32, 4, 128, 4
    for kv in (8, 32):
        model = tiny(num_hidden_layers=layers, num_key_value_heads=kv // 8)
        stream = sluice.stream(model, session=session, hidden="host",
                               chunk=tokens // chunks)
        run(model, batch(1, tokens))
        per_token = layers * (4 * width + 2 * 4 * kv + 4 * width + 4 * heads)
        per_token += max(4 * width,
                         (4 * width + 8 * kv) * (1 - 1 / chunks))
        assert stream.stats().host_peak_bytes == tokens * per_token
        assert stream.stats().host_bytes == 0
        stream.unstream()


class Largest(TorchDispatchMode):
    """While active, records the largest storage that torch computes."""

    def __init__(self):
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.nbytes = max(self.nbytes,
                                  tensor.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("hidden,rows", [("host", 0.55), ("device", 1.0)])
def test_no_tensor_exceeds_the_limit(session, hidden, rows):
    """The limit is `rows` times the hidden states' bytes. For "host" the limit
    is a bit more than mask detection allocates: 33 int64 keys per row."""
    model, tokens = tiny(hidden_size=128, head_dim=8), 256
    sluice.stream(model, session=session, chunk=16, hidden=hidden)
    inputs = batch(1, tokens)
    with Largest() as largest:
        run(model, inputs)
    assert largest.nbytes <= rows * tokens * 128 * 4


def test_rotary_embeddings_may_remember_lengths(session, hidden):
    model = tiny(max_position_embeddings=48, rope_parameters={
        "rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    twin = tiny(max_position_embeddings=48, rope_parameters={
        "rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    stream = sluice.stream(model, session=session, chunk=16, hidden=hidden)
    for length in (40, 90, 70, 30, 75):
        inputs = batch(length=length, seed=length)
        assert_same(run(model, inputs), run(twin, inputs))
    # Both shorter and longer batches come between a forward and its backward.
    for lengths in ((40, 90), (90, 30), (30, 75, 40)):
        found = [losses(each, lengths) for each in (model, twin)]
        assert_same(*found)
    assert stream.stats().host_bytes == 0


def losses(model, lengths):
    """Runs several forwards and one backward of the sum of their losses."""
    model.zero_grad()
    loss = sum(model(**batch(length=n, seed=n)).loss for n in lengths)
    loss.backward()
    return Run(loss.item(), {n: p.grad.clone() for n, p in
                             model.named_parameters()})


def test_dropout_after_the_embedding_is_exact(session, hidden):
    """The gradient equals the slope of the loss under the same dropout."""
    kind, changes = KINDS["learned positions"]
    model, inputs = tiny(kind, **{**changes, "embd_pdrop": 0.3}), batch()
    sluice.stream(model, session=session, chunk=16, hidden=hidden,
                  check="always")
    weight = model.transformer.wte.weight

    def loss():
        torch.manual_seed(5)
        return model(**inputs).loss

    loss().backward()
    direction = weight.grad / weight.grad.norm()
    with torch.no_grad():
        weight += 1e-2 * direction
        above = loss().item()
        weight -= 2e-2 * direction
        below = loss().item()
    slope = float((weight.grad * direction).sum())
    assert (above - below) / 2e-2 == pytest.approx(slope, rel=2e-2)


@in_host
def test_frozen_parts_get_no_gradient(session, hidden):
    model, inputs = tiny(), batch()
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    model.model.norm.requires_grad_(False)
    expected = unstreamed(model, inputs)
    assert_same(streamed(model, session, inputs, **ALWAYS, hidden=hidden),
                expected)


@in_host
def test_gradients_accumulate_and_hooks_fire_once(session, hidden):
    model, first, second = tiny(), batch(seed=1), batch(length=50, seed=2)
    wanted = [unstreamed(model, inputs) for inputs in (first, second)]
    sluice.stream(model, session=session, chunk=16, hidden=hidden)
    fired = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, n=name: fired.__setitem__(n, fired.get(n, 0) + 1))
    losses = [model(**inputs).loss for inputs in (first, second)]
    sum(2 * loss for loss in losses).backward()
    for name, parameter in model.named_parameters():
        both = 2 * sum(w.gradients[name] for w in wanted)
        assert (parameter.grad - both).norm() <= 1e-5 * both.norm(), name
    assert fired == {n: 1 for n, _ in model.named_parameters()}


def test_a_custom_loss_has_the_models_gradients(session, hidden):
    """Without labels the hidden states are a tensor on the device."""
    def losses(model):
        ids = batch()["input_ids"]
        F.cross_entropy(model(ids, use_cache=False).logits[:, :-1].flatten(
            0, 1), ids[:, 1:].flatten()).backward()
        return {n: p.grad for n, p in model.named_parameters()}

    expected = losses(tiny())
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, hidden=hidden)
    for name, gradient in losses(model).items():
        apart = (gradient - expected[name]).norm()
        assert apart <= 1e-5 * expected[name].norm(), name
    assert stream.stats().host_bytes == 0
    model.eval()
    with torch.no_grad():
        assert model(**batch(), use_cache=False).loss > 0
    assert stream.stats().host_bytes == 0


@pytest.mark.parametrize("where,at", [
    deep("model.layers.1.mlp", 1), ("model.layers.1.mlp", 7), ("model.norm", 1),
    ("model.embed_tokens", 1), ("model.embed_tokens", 7), ("lm_head", 1)])
def test_an_exception_frees_all_host_bytes(session, hidden, where, at):
    model, inputs, calls = tiny(), batch(), []
    if where == "model.embed_tokens" and hidden == "device":
        at = min(at, 4)  # a call embeds up to 4 chunks, so there are 4 calls

    def fail(*_):
        calls.append(1)
        if len(calls) == calls_until:
            raise KeyboardInterrupt

    calls_until = -1
    model.get_submodule(where).register_forward_hook(fail)
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16, hidden=hidden)
    calls.clear()
    calls_until = at
    with pytest.raises(KeyboardInterrupt):
        run(model, inputs)
    gc.collect()
    assert stream.stats().host_bytes == 0
    assert_same(run(model, inputs), expected)


@in_host
def test_a_forward_without_backward_frees_its_host_bytes(session, hidden):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, hidden=hidden)
    loss = model(**batch()).loss
    assert stream.stats().host_bytes > 0
    del loss
    gc.collect()
    assert stream.stats().host_bytes == 0


class MixesRows(nn.Embedding):
    """An embedding that cannot be computed for a chunk alone."""

    def forward(self, ids):
        return super().forward(ids) + self.weight[ids].mean(1, keepdim=True)


def mixing(model):
    made = MixesRows(97, 32)
    made.weight = model.model.embed_tokens.weight
    model.model.embed_tokens = made


def counting(model):
    """Changes the output between the layers and the head, where the probe of a
    layer does not see the change."""
    model.model.norm.register_forward_hook(
        lambda m, a, y: y * (1 + y.shape[1] / 100))


@pytest.mark.parametrize("change", [mixing, counting])
def test_embeddings_and_heads_that_mix_rows_are_refused_on_host(session,
                                                                change):
    model, inputs = tiny(), batch()
    change(model)
    with pytest.raises(sluice.Unsupported, match='hidden="device"'):
        sluice.stream(model, session=session, chunk=16, hidden="host")
    assert_same(streamed(model, session, inputs, **ALWAYS),
                unstreamed(model, inputs))


def late_hook(model):
    model.model.embed_tokens.register_forward_hook(
        lambda m, a, y: y * (1 + y.shape[1] / 100))
    return {}


def between(model):
    model.model.layers[0].register_forward_hook(lambda m, a, y: y * 1.5)
    return {}


CALLS = {
    "hidden states of all layers": lambda _: {"output_hidden_states": True},
    "a hook that came later": late_hook,
    "a hook between layers": between,
}


@pytest.mark.parametrize("name", CALLS)
def test_unsupported_calls_are_refused_on_host_and_run_whole_on_device(
        session, name):
    """With hidden="device" the embedding and the head of these calls run
    whole."""
    model, inputs = tiny(), batch()
    stream = sluice.stream(model, session=session, chunk=16, hidden="host")
    inputs.update(CALLS[name](model))
    with pytest.raises(sluice.Unsupported, match='hidden="device"'):
        run(model, inputs)
    gc.collect()
    assert stream.stats().host_bytes == 0
    stream.unstream()
    stream = sluice.stream(model, session=session, chunk=16)
    assert_same(run(model, inputs), unstreamed(model, inputs))


def test_inputs_embeds_are_refused_on_host(session):
    model, inputs = tiny(), batch()
    inputs["inputs_embeds"] = model.model.embed_tokens(
        inputs.pop("input_ids")).detach()
    expected = unstreamed(model, inputs)
    assert_same(streamed(model, session, inputs, **ALWAYS), expected)
    sluice.stream(model, session=session, chunk=16, hidden="host")
    with pytest.raises(sluice.Unsupported, match="'inputs_embeds' with"):
        run(model, inputs)


def test_bf16_error_is_that_of_hidden_states_on_device(session):
    model = tiny().to(torch.bfloat16)
    wide = tiny()
    wide.load_state_dict(model.state_dict())
    inputs = batch()
    exact, found = run(wide, inputs), {}
    for place in ("device", "host"):
        got = streamed(model, session, inputs, **ALWAYS, hidden=place)
        found[place] = sum(float(
            (g.double() - exact.gradients[n].double()).norm()) ** 2
            for n, g in got.gradients.items()) ** 0.5
    assert found["host"] == pytest.approx(found["device"], rel=0.1)


def test_backward_hooks_of_layers_fire_once_and_change_gradients(session):
    def step(model):
        fired = []

        def double(module, grad_input, _):
            fired.append(module)
            return (2 * grad_input[0],)

        hooks = [layer.register_full_backward_hook(double)
                 for layer in model.model.layers]
        made = run(model, batch())
        for hook in hooks:
            hook.remove()
        assert fired == list(model.model.layers)[::-1]
        return made

    model = tiny()
    expected = step(tiny())
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(step(model), expected)
    stream.unstream()
