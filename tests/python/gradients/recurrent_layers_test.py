"""Layers that pass a state along the sequence, through the cache argument,
have the model's own gradients."""

from __future__ import annotations

import pytest
import torch
import transformers
from models import assert_same, batch, run, unstreamed
from support import deep
from walk import configs

import sluice
from sluice import Unsupported
from sluice.node.carried_state import BLOCK, Cache

if "update_conv_state" not in vars(transformers.Cache):
    pytest.skip("this transformers has no Cache.update_conv_state",
                allow_module_level=True)

# Models with gated delta rules, KDA, Mamba-2 (in addition to attention or in
# its place), short convolutions, layers with only a feed-forward network, or a
# shared layer.
NAMES = ["kimi_linear", "falcon_h1", "lfm2", "nemotron_h", "qwen3_next",
         "zamba2"] + [deep(name) for name in (
             "bailing_hybrid", "bamba", "granitemoehybrid", "lfm2_moe",
             "lfm3", "mamba2", "olmo_hybrid", "qwen3_5", "qwen3_5_moe",
             "qwen3_5_moe_text", "qwen3_5_text")]
# Weights that set the decay. Their gradients are sums that nearly cancel.
DECAY = ("A_log", "dt_bias", "dt_proj.weight", "dt_proj.bias",
         "in_proj_a.weight", "in_proj_ba.weight", "a_proj.weight",
         "f_a_proj.weight", "f_b_proj.weight")


def assert_near(got, expected) -> None:
    """The limit per parameter is 1e-5 of its gradient's norm (5e-5 if it sets
    the decay) or 1e-6 of the norm of all gradients, whichever is larger."""
    whole = sum(float(g.norm()) ** 2 for g in expected.gradients.values()
                if g is not None) ** 0.5
    assert abs(got.loss - expected.loss) <= 1e-5 * abs(expected.loss)
    for name, wanted in expected.gradients.items():
        limit = 5e-5 if name.endswith(DECAY) else 1e-5
        gradient = got.gradients[name]
        if wanted is None:
            assert gradient is None or not gradient.any(), name
            continue
        apart = float((gradient - wanted).norm())
        assert apart <= max(limit * float(wanted.norm()), 1e-6 * whole), (
            name, apart / float(wanted.norm()))


def steps(name, session, calls, **options) -> None:
    """Checks loss and gradients of each call of the streamed model."""
    model = configs.tiny(name)
    stream = sluice.stream(model, session=session, quiet=True,
                           **{"chunk": BLOCK, **options})
    assert not stream.whole
    got = []
    for inputs in calls:
        got.append(run(model, inputs))
        assert stream.stats().host_bytes == 0
    assert stream.stats().steps == len(calls)
    stream.unstream()
    for inputs, each in zip(calls, got):
        assert_near(each, unstreamed(model, inputs))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_models_own(session, name):
    """128 rows are whole chunks. 150 rows end with a short chunk. The last row
    of 193 is merged with the chunk before it."""
    steps(name, session, [batch(length=length, seed=length)
                          for length in (128, 150, 193)])


def test_a_cache_argument_of_transformers_5_24_is_known(session, monkeypatch):
    """It is called `cache`, and attention passes `kwargs` to `update`."""
    name, model = "falcon_h1", configs.tiny("falcon_h1")
    layer = type(model.model.layers[0])
    own, update = layer.forward, Cache.update

    def forward(self, hidden_states, cache=None, **given):
        return own(self, hidden_states,
                   **{**given, "past_key_values": cache})

    monkeypatch.setattr(layer, "forward", forward)
    monkeypatch.setattr(Cache, "update", lambda *args: update(
        *args, kwargs={}))
    steps(name, session, [batch(length=150)])


@pytest.mark.parametrize("options", [
    dict(hidden="host"), dict(rerun=0.5), dict(check="always"),
    dict(policy={"*": {"keep": 0.3, "swap": 0.4}})], ids=str)
@pytest.mark.parametrize("name", ["lfm2", "qwen3_next"])
def test_each_option_is_exact(session, name, options):
    steps(name, session, [batch(length=200)], **options)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["lfm2", "nemotron_h", "qwen3_next"])
def test_padding_is_exact(session, name, side):
    inputs = batch(length=150)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, slice(0, 70) if side == "left" else slice(80, None)] = 0
    inputs["labels"][mask == 0] = -100
    inputs["labels"][1, :72 if side == "left" else 0] = -100
    steps(name, session, [{**inputs, "attention_mask": mask}])


def test_no_sequence_is_cut_into_a_chunk_of_one_row(session):
    model, rows = configs.tiny("lfm2"), []
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert stream.chunk == BLOCK
    model.model.layers[0].conv.register_forward_pre_hook(
        lambda module, args, given: rows.append(
            given["hidden_states"].shape[1]), with_kwargs=True)
    for length in (1, 2, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK + 2):
        inputs = batch(length=length + 1)
        inputs = {name: value[:, 1:] for name, value in inputs.items()}
        rows.clear()
        run(model, inputs)
        assert length == 1 or min(rows) > 1, (length, rows)
    stream.unstream()


def test_host_bytes_follow_the_formula(session):
    """The host holds the inputs of all rows, and the initial state of each
    chunk but the first."""
    model, sequences, chunks = configs.tiny("mamba2"), 2, 4
    stream = sluice.stream(model, session=session, chunk=BLOCK, quiet=True)
    run(model, batch(sequences, chunks * BLOCK))
    mixer = model.backbone.layers[0].mixer
    state = (mixer.conv_dim * mixer.conv_kernel_size
             + mixer.num_heads * mixer.head_dim * mixer.ssm_state_size)
    assert stream.stats().host_peak_bytes == 4 * sequences * len(
        model.backbone.layers) * (
            chunks * BLOCK * model.config.hidden_size + (chunks - 1) * state)
    stream.unstream()


def test_two_forwards_may_precede_a_backward(session):
    model = configs.tiny("qwen3_next")
    calls = [batch(length=length, seed=length) for length in (130, 200)]
    wanted = [unstreamed(model, inputs) for inputs in calls]
    stream = sluice.stream(model, session=session, chunk=BLOCK, quiet=True)
    model(**calls[0])  # this forward has no backward
    sum(model(**inputs).loss for inputs in calls).backward()
    assert stream.stats().host_bytes == 0
    for name, parameter in model.named_parameters():
        both = sum(w.gradients[name] for w in wanted)
        assert (parameter.grad - both).norm() <= 5e-5 * both.norm(), name
    stream.unstream()


def test_frozen_layers_pass_gradients_on(session):
    model = configs.tiny("qwen3_next")
    model.requires_grad_(False)
    model.model.embed_tokens.requires_grad_(True)
    inputs = batch(length=150)
    wanted = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=BLOCK, quiet=True)
    assert_same(run(model, inputs), wanted)
    stream.unstream()


@pytest.mark.parametrize("name", ["lfm2", "nemotron_h", "qwen3_next"])
@pytest.mark.parametrize("narrow", ["weights", "autocast"])
def test_the_check_accepts_bf16(session, name, narrow):
    model = configs.tiny(name)
    if narrow == "weights":
        model.bfloat16()
    stream = sluice.stream(model, session=session, chunk=BLOCK,
                           quiet=True, check="always")
    for length in (150, 256):
        with torch.autocast("cpu", torch.bfloat16,
                            enabled=narrow == "autocast"):
            loss = model(**batch(length=length)).loss
        loss.backward()
    stream.unstream()


# --- refusals ---------------------------------------------------------------

@pytest.mark.parametrize("positions", [
    torch.cat([torch.arange(70), torch.arange(80)]),
    torch.cat([torch.arange(70), torch.arange(80) + 300])])
def test_packed_documents_are_refused(session, positions):
    model = configs.tiny("lfm2")
    stream = sluice.stream(model, session=session, quiet=True)
    inputs = {**batch(length=150), "use_cache": False,
              "position_ids": positions.expand(2, -1)}
    with pytest.raises(Unsupported, match="documents"):
        run(model, inputs)
    # With a mask these positions mean one sequence.
    mask = torch.ones_like(inputs["input_ids"])
    assert run(model, {**inputs, "attention_mask": mask}).loss > 0
    stream.unstream()


@pytest.mark.parametrize("name", ["falcon_mamba", "jamba", "mamba", "zamba"])
def test_layers_that_write_a_state_without_reading_it_run_whole(session, name):
    stream = sluice.stream(configs.tiny(name), session=session, quiet=True)
    assert all("a recurrent state that it leaves" in kind.why
               for kind, _ in stream.whole)


class Changing:
    """Scales the state that a short convolution leaves, in calls with at least
    `rows` rows."""

    def __init__(self, conv, rows, factor):
        self._own, self._rows, self.factor = conv.forward, rows, factor
        conv.forward = self

    def __call__(self, hidden_states, past_key_values=None, **given):
        y = self._own(hidden_states, past_key_values=past_key_values, **given)
        if past_key_values is not None and (
                hidden_states.shape[1] >= self._rows):
            for key in past_key_values.after:
                past_key_values.after[key] = self.factor * (
                    past_key_values.after[key])
        return y


def test_a_state_that_depends_on_the_number_of_rows_is_found(session):
    """The probe has fewer than BLOCK rows. The step's comparison of a part of a
    chunk finds the difference."""
    model = configs.tiny("lfm2")
    for layer in model.model.layers:
        if not layer.is_attention_layer:
            Changing(layer.conv, BLOCK, 1.5)
    stream = sluice.stream(model, session=session, chunk=BLOCK, quiet=True)
    with pytest.raises(Unsupported, match="a state after chunk"):
        run(model, batch(length=150))
    stream.unstream()


def test_a_state_that_differs_in_backward_is_found(session):
    model = configs.tiny("lfm2")
    changing = [Changing(layer.conv, 0, 1.0) for layer in model.model.layers
                if not layer.is_attention_layer]
    stream = sluice.stream(model, session=session, chunk=BLOCK, quiet=True)
    loss = model(**batch(length=150)).loss
    changing[-1].factor = 1.5
    with pytest.raises(RuntimeError, match="computed other values"):
        loss.backward()
    stream.unstream()
