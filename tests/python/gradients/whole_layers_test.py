"""Layers that cannot be split into chunks run whole, one at a time. Their
gradients are the model's own, and they keep only their input."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from models import (
    Wrapper,
    assert_same,
    batch,
    run,
    tiny,
    unstreamed,
    wrap_mlps,
)
from walk import configs

import sluice
from sluice import Unsupported
from sluice.hf.causal_twin import Twins

# jamba has Mamba-1 and attention, bloom a bias on all scores, gemma3n_text
# hidden states of another shape. Layers of gemma3n_text pass each other keys
# and values, layers of zaya other tensors.
HYBRID, ALL = "jamba", ["bloom", "gemma3n_text", "zaya"]


class TokenShift(Wrapper):
    def forward(self, x):
        return self.inner(x) + F.pad(x, (0, 0, 1, -1))


def shifting():
    return wrap_mlps(TokenShift)


def unlabelled(length, sequences=2):
    return batch(sequences, length)["input_ids"]


@pytest.mark.parametrize("options", [
    {}, dict(hidden="host"), dict(check="always", rerun=0.5)], ids=str)
def test_whole_layers_beside_chunked_layers_are_exact(session, options):
    model = configs.tiny(HYBRID)
    twin = configs.tiny(HYBRID)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           **options)
    [(kind, count)] = stream.whole
    assert count == 2 and not kind.own_attention
    assert kind.bytes_per_token > 0 and kind.bytes_per_pair == 0
    for length in (64, 75, 131):
        inputs = batch(length=length, seed=length)
        assert_same(run(model, inputs), run(twin, inputs))
        assert stream.stats().host_bytes == 0
        with torch.no_grad():
            model.eval()(**inputs)
            model.train()
    assert stream.stats().blocks > 0
    model.zero_grad(), twin.zero_grad()
    for seed in (1, 2):
        for each in (model, twin):
            each(**batch(length=50, seed=seed)).loss.backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters()):
        assert (p.grad - q.grad).norm() <= 1e-5 * q.grad.norm(), name


@pytest.mark.filterwarnings("ignore:sluice")
def test_reported_bytes_are_of_the_models_dtype(session):
    def weighed(dtype):
        model = configs.tiny("bloom").to(dtype)
        [(kind, _)] = sluice.stream(model, session=session, quiet=True).whole
        return kind.bytes_per_token, kind.bytes_per_pair

    of_token, of_pair = weighed(torch.float32)
    assert weighed(torch.bfloat16) == (round(of_token / 2), of_pair / 2)


def test_layers_run_whole_after_a_change_in_them(session):
    model, twin = configs.tiny(HYBRID), configs.tiny(HYBRID)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    for each in model, twin:
        for layer in each.model.layers:
            layer.input_layernorm.register_forward_hook(
                lambda module, args, y: 2 * y)
    assert_same(run(model, batch()), run(twin, batch()))
    [(kind, count)] = stream.whole
    assert count == 2 and kind.bytes_per_token > 0


def test_a_small_twin_shows_which_layers_run_whole(session, monkeypatch):
    """A twin of the whole model might not fit in memory."""
    made, own = [], Twins._made

    def noted(self, small, device):
        twin = own(self, small, device)
        made.append((twin.is_small, len(twin.layers),
                     len(twin.causal.get_input_embeddings().weight)))
        return twin

    monkeypatch.setattr(Twins, "_made", noted)
    model = wrap_mlps(TokenShift, tiny(num_hidden_layers=4, vocab_size=1000))
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert made == [(True, 2, 512)] and [
        count for _, count in stream.whole] == [4]


@pytest.mark.parametrize("name", ALL)
def test_models_with_only_whole_layers_are_exact(session, name):
    model, twin = configs.tiny(name), configs.tiny(name)
    with pytest.warns() if name == "bloom" else pytest.MonkeyPatch.context():
        stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    layers = sum(count for _, count in stream.whole)
    assert layers == model.config.num_hidden_layers
    for kind, _ in stream.whole:
        # Only Bloom's own attention materialises its scores.
        assert kind.own_attention == (name == "bloom")
        assert (kind.bytes_per_pair > 0) == (name == "bloom")
    for length in (64, 75):
        inputs = batch(length=length, seed=length)
        assert_same(run(model, inputs), run(twin, inputs))
    assert stream.stats().host_bytes == 0


def test_attention_of_a_whole_layer_goes_by_chunks(session):
    model, inputs = shifting(), batch(length=75)
    expected, other = unstreamed(model, inputs), unstreamed(
        model, inputs, "sdpa")
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(run(model, inputs), expected, other)
    chunks = 5
    assert stream.stats().blocks == 2 * chunks * (chunks + 1) / 2
    assert [(k.bytes_per_pair, n) for k, n in stream.whole] == [(0, 2)]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [
    "bloom", HYBRID, "deepseek_v4", "qwen4_exp_text"])
@pytest.mark.filterwarnings("ignore:sluice")
def test_padding_is_exact(session, name, side):
    model, twin = configs.tiny(name), configs.tiny(name)
    inputs = batch(length=75)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, slice(0, 30) if side == "left" else slice(40, None)] = 0
    inputs["labels"][mask == 0] = -100
    inputs["labels"][1, :32 if side == "left" else 0] = -100
    inputs["attention_mask"] = mask
    sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(run(model, inputs), run(twin, inputs))


@pytest.mark.parametrize("hidden", ["device", "host"])
@pytest.mark.filterwarnings("ignore:sluice")
def test_only_inputs_stay_between_forward_and_backward(session, hidden):
    model = configs.tiny("mamba")
    made = []
    for layer in model.backbone.layers:
        layer.mixer.in_proj.register_forward_hook(
            lambda module, args, y: made.append(weakref.ref(y)))
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           hidden=hidden)
    made.clear()
    layers, sequences, length = len(model.backbone.layers), 2, 75
    loss = model(**batch(sequences, length)).loss
    assert len(made) == layers and all(ref() is None for ref in made)
    # With hidden states on the host the last layer's output is stored there,
    # too.
    assert stream.stats().host_bytes == 4 * sequences * length * (
        model.config.hidden_size) * (layers + (hidden == "host"))
    loss.backward()
    assert len(made) == 2 * layers
    assert stream.stats().host_bytes == 0


class Dropped(TokenShift):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.3, self.training)


def test_whole_layers_draw_the_same_random_numbers(session):
    model, inputs = wrap_mlps(Dropped), batch()
    torch.manual_seed(5)
    expected = unstreamed(model, inputs)
    torch.manual_seed(5)
    other = unstreamed(model, inputs, "sdpa")
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           check="always")
    assert len(stream.whole) == 1
    torch.manual_seed(5)
    assert_same(run(model, inputs), expected, other)


class Drifting(TokenShift):
    calls = 0

    def forward(self, x):
        Drifting.calls += self.drifts
        return super().forward(x) * (1 + 1e-3 * (Drifting.calls % 7))


def test_a_whole_layer_that_is_not_deterministic_is_found(session):
    Drifting.drifts, Drifting.calls = 0, 0
    model = wrap_mlps(Drifting)
    sluice.stream(model, session=session, chunk=16, quiet=True)
    Drifting.drifts = 1
    with pytest.raises(RuntimeError, match="other values in its second"):
        run(model, batch())


def test_the_users_own_layers_run_whole(session):
    model = shifting()
    inputs = batch()
    expected = unstreamed(model, inputs, "sdpa")
    model.set_attn_implementation("sdpa")
    stream = sluice.stream(
        layers=model.model.layers, attention="sdpa", session=session, chunk=16,
        quiet=True, sample=lambda: model(unlabelled(70), use_cache=False))
    assert [count for _, count in stream.whole] == [2]
    assert_same(run(model, {**inputs, "use_cache": False}), expected)
    assert stream.stats().blocks > 0


def test_packed_documents_are_refused(session):
    model = configs.tiny(HYBRID)
    sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(Unsupported, match="packed documents"):
        model(**batch(), position_ids=torch.arange(75).expand(2, -1) % 40,
              use_cache=False)


def test_a_plan_is_refused(session):
    with pytest.raises(Unsupported, match="run whole"):
        sluice.stream(configs.tiny(HYBRID), session=session, policy="plan")


def test_a_chunk_size_is_not_measured_without_attention(session):
    with pytest.raises(ValueError, match="chunk=1024"):
        sluice.stream(configs.tiny("mamba"), session=session, chunk="auto")


def test_unstream_leaves_the_model_as_it_was(session):
    model, inputs = shifting(), batch()
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    run(model, inputs)
    stream.unstream()
    assert all("forward" not in vars(m) for m in model.modules())
    got = run(model, inputs)
    assert all(torch.equal(got.gradients[n], g)
               for n, g in expected.gradients.items())
