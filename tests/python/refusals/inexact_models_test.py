"""Models that stream() cannot run exactly by chunks run whole, or are refused
with an error that names the reason."""

from __future__ import annotations

import functools
import re

import pytest
import torch
import torch.nn.functional as F
from models import (
    SIZES,
    AddLoss,
    Wrapper,
    assert_same,
    batch,
    run,
    tiny,
    unstreamed,
    wrap_mlps,
)
from support import deep
from torch import nn
from transformers import ChameleonConfig, ChameleonForConditionalGeneration

import sluice
from sluice import Unsupported


class Mlp(Wrapper):
    """A layer's own feed-forward network, followed by `after`."""

    def __init__(self, inner):
        super().__init__(inner)
        self.register_buffer("load", torch.zeros(4))

    def forward(self, x):
        return self.after(self.inner(x), x)


class FunctionalDropout(Mlp):
    def after(self, y, x):
        return F.dropout(y, 0.3, self.training)


class SampledRouting(Mlp):
    def after(self, y, x):
        return y * (torch.rand(x.shape[:2] + (1,)) < 0.5) * 2


class TokenShift(Mlp):
    def after(self, y, x):
        return y + F.pad(x, (0, 0, 1, -1))


class RowsSum(Mlp):
    def after(self, y, x):
        return y + x.cumsum(1) * 0.01


class Positions(Mlp):
    def after(self, y, x):
        return y + torch.arange(x.shape[1])[:, None] * 0.01


class LatePositions(Mlp):
    """Scales rows, as Llama 4 scales queries. The factor changes at row 89, and
    the probe has fewer rows."""

    def after(self, y, x):
        rows = torch.arange(0, x.shape[1], device=x.device)
        return y * torch.log1p(torch.floor((rows + 1) / 90.0))[:, None]


class Indices(Mlp):
    """Indexes its rows by their number, as experts do."""

    def after(self, y, x):
        rows = torch.arange(end=x.shape[1])
        return torch.zeros_like(y).index_add_(1, rows, y[:, rows])


class FromTheEnd(Mlp):
    """Scales the last 100 rows: more than the probe, or a chunk, has."""

    def after(self, y, x):
        rows = torch.arange(x.shape[1])
        return torch.where(rows[:, None] < x.shape[1] - 100, y, 1.5 * y)


class CountedDown(Mlp):
    def after(self, y, x):
        left = torch.arange(x.shape[1], 0, -1)
        return torch.where(left[:, None] > 100, y, 1.5 * y)


class Alternating(Mlp):
    def after(self, y, x):
        return y * (1 + torch.arange(1, x.shape[1] + 1) % 2)[:, None]


class TwoUses(Mlp):
    """Uses row numbers both as positions and as indices of the layer's own
    rows."""

    def after(self, y, x):
        rows = torch.arange(x.shape[1])
        return y[:, rows % x.shape[1]] * rows[:, None]


class AuxiliaryLoss(Mlp):
    """Adds a loss that balances experts over all rows: a product of two means.
    """

    def after(self, y, x):
        share = torch.softmax(y[..., :4], -1).mean((0, 1))
        return AddLoss.apply(y, (share * share).sum() * 100)


class LossOfManyRows(Mlp):
    """Adds a loss only for more rows than a chunk has, so that `balance` has no
    gradient in chunks."""

    def __init__(self, inner):
        super().__init__(inner)
        self.balance = nn.Parameter(torch.ones(()))

    def after(self, y, x):
        return AddLoss.apply(y, self.balance) if x.shape[1] > 24 else y


class CapacityRouter(Mlp):
    """Each expert takes the first rows that choose it, up to its capacity."""

    def after(self, y, x):
        wish = x[..., :4].argmax(-1)
        place = F.one_hot(wish, 4).cumsum(1).gather(-1, wish[..., None])
        return y * (place <= x.shape[1] // 2)


class LoadCounter(Mlp):
    def after(self, y, x):
        if self.training:
            self.load += F.one_hot(x[..., :4].argmax(-1), 4).sum((0, 1))
        return y


class BatchStatistics(Mlp):
    def after(self, y, x):
        return (y - y.mean((0, 1))) * 2


class Keeping(Mlp):
    def after(self, y, x):
        self.kept = y
        return y


class InPlace(Mlp):
    def after(self, y, x):
        return y.add_(1)


def with_mlp(kind, **changes):
    return wrap_mlps(kind, tiny(**changes)).train()


@pytest.mark.parametrize("kind,names", [
    (TokenShift, "output differs"),
    (RowsSum, "output differs"),
    (TwoUses, "output differs"),
    (AuxiliaryLoss, "gradient of"),
    (LossOfManyRows, "gradient of.*balance"),
    (CapacityRouter, "output differs"),
    (BatchStatistics, "output differs"),
])
def test_modules_that_mix_or_count_rows_run_whole(session, kind, names):
    model, inputs = with_mlp(kind), batch()
    expected, other = unstreamed(model, inputs), unstreamed(
        model, inputs, "sdpa")
    stream = sluice.stream(model, session=session, chunk=16)
    [(found, count)] = stream.whole
    assert re.search(names, found.why) and count == 2
    assert_same(run(model, inputs), expected, other)


def test_the_clearest_of_several_reasons_is_reported(session):
    """Another reason would be that GPT-J does not call attention through the
    registry."""
    model = tiny("gptj", **LEARNED, attn_pdrop=0.0)
    for layer in model.transformer.h:
        layer.mlp = TokenShift(layer.mlp)
    [(found, _)] = sluice.stream(model, session=session, chunk=16).whole
    assert "output differs" in found.why


def test_a_layer_that_keeps_its_graph_is_refused(session):
    with pytest.raises(Unsupported, match="its graph that is kept after its "
                       "forward"):
        sluice.stream(with_mlp(Keeping), session=session, chunk=16)


def test_a_refusal_leaves_the_model_as_it_was(session):
    model = tiny(attention_dropout=0.1)
    forwards = [vars(m).get("forward") for m in model.modules()]
    with pytest.raises(Unsupported, match="attention dropout"):
        sluice.stream(model, session=session, chunk=16)
    assert [vars(m).get("forward") for m in model.modules()] == forwards


@pytest.mark.parametrize("kind", [Positions, LatePositions, Indices])
def test_layers_that_number_their_rows_are_exact(session, kind):
    model, inputs = with_mlp(kind), batch(length=130)
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    assert bool(stream.numbered) is (kind is not Indices)
    for _ in range(2):
        assert_same(run(model, inputs), expected)


def test_rows_that_alternate_are_exact_in_chunks_of_odd_length(session):
    model, inputs = with_mlp(Alternating), batch(length=130)
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=17)
    assert_same(run(model, inputs), expected)
    assert stream.numbered and not stream.whole


@pytest.mark.parametrize("kind", [FromTheEnd, CountedDown])
def test_layers_that_number_their_rows_from_the_end_run_whole(session, kind):
    model, inputs = with_mlp(kind), batch(length=130)
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    assert_same(run(model, inputs), expected)
    assert "from the sequence's end" in stream.whole[0][0].why


class FromRow(Mlp):
    def after(self, y, x):
        return torch.cat([y[:, :self.at], 1.5 * y[:, self.at:]], 1)


class IfLonger(Mlp):
    def after(self, y, x):
        return 1.5 * y if x.shape[1] > self.at else y


@pytest.mark.parametrize("kind, at, chunk, dtype", [
    (FromRow, 71, 1024, torch.float32), (FromRow, 128, 200, torch.float32),
    (IfLonger, 150, 200, torch.float32), (IfLonger, 300, 512, torch.float32),
    (IfLonger, 600, 1024, torch.float32), (IfLonger, 150, 200, torch.bfloat16),
    deep(FromRow, 71, 200, torch.float32),
    deep(FromRow, 71, 512, torch.float32),
    deep(FromRow, 128, 1024, torch.float32),
    deep(IfLonger, 100, 512, torch.float32),
    deep(IfLonger, 300, 1024, torch.float32),
    deep(FromRow, 71, 1024, torch.bfloat16)])
def test_thresholds_beyond_the_probe_are_found_in_the_first_step(
        session, kind, at, chunk, dtype):
    """A threshold is a row's index or a number of rows. It lies within a chunk,
    or between the lengths of the last chunk and of a full chunk."""
    model = with_mlp(kind, num_hidden_layers=1,
                     max_position_embeddings=4096).to(dtype)
    model.model.layers[0].mlp.at = at
    sluice.stream(model, session=session, chunk=chunk)
    loss = model(**batch(rows=1, length=2100)).loss
    with pytest.raises(Unsupported, match="LlamaDecoderLayer: .* rows of chunk"
                       ".*depends on how many rows it sees"):
        loss.backward()


def rounded_by_shape(x, weight, bias=None, own=F.linear):
    """Adds two partial products in the tensor's own type, as GPUs do. The
    shape decides where the product is divided."""
    at = 8 + x.shape[-2] * 7 % (x.shape[-1] - 16)
    y = own(x[..., :at], weight[..., :at]) + own(x[..., at:], weight[..., at:])
    return y if bias is None else y + bias


EXPERTS = {
    "qwen3_moe": dict(num_experts=128, num_experts_per_tok=8, hidden_size=256,
                      moe_intermediate_size=24, norm_topk_prob=True),
    "mixtral": dict(num_local_experts=8),
    "gpt_oss": dict(num_local_experts=32, hidden_size=64),
}


@pytest.mark.parametrize("kind, padding", [
    ("qwen3_moe", 40), ("mixtral", 0), ("gpt_oss", 40),
    deep("qwen3_moe", 0), deep("mixtral", 40), deep("gpt_oss", 0)])
def test_rounding_of_experts_is_not_taken_for_a_threshold(
        session, monkeypatch, kind, padding):
    """Rounding may send a row to another expert, or all rows of padding at
    once."""
    model = tiny(kind, num_hidden_layers=1, **EXPERTS[kind]).bfloat16()
    model.set_attn_implementation("eager" if kind == "gpt_oss" else "sdpa")
    sluice.stream(model, session=session, chunk=200, check="always")
    monkeypatch.setattr(F, "linear", rounded_by_shape)
    for seed in range(2):
        inputs = batch(length=390, seed=seed)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][:, :padding] = 0
        inputs["input_ids"][:, :padding] = 0
        inputs["labels"][:, :padding + 1] = -100
        run(model, inputs)


def test_a_load_counter_counts_each_row_once(session):
    model, inputs = with_mlp(LoadCounter), batch()
    sluice.stream(model, session=session, chunk=16)
    counted = [m for m in model.modules() if isinstance(m, LoadCounter)]
    assert all(not m.load.any() for m in counted)  # the probe leaves no counts
    run(model, inputs)
    assert all(m.load.sum() == inputs["input_ids"].numel() for m in counted)


def test_an_in_place_write_on_its_own_result_is_exact(session):
    model, inputs = with_mlp(InPlace), batch()
    expected = unstreamed(model, inputs)
    other = unstreamed(model, inputs, "sdpa")
    sluice.stream(model, session=session, chunk=16)
    assert_same(run(model, inputs), expected, other)


@pytest.mark.parametrize("kind", [FunctionalDropout, SampledRouting])
def test_random_layers_have_the_gradient_of_their_drawn_numbers(session, kind):
    """Compares with finite differences along the gradient, with the same random
    numbers."""
    model, inputs = with_mlp(kind).double(), batch()
    sluice.stream(model, session=session, chunk=16, check="always")
    state = torch.get_rng_state()
    run(model, inputs)
    weight = model.model.layers[0].mlp.inner.up_proj.weight
    direction = weight.grad.clone()

    def loss(step):
        torch.set_rng_state(state)
        with torch.no_grad():
            weight.add_(step * direction)
            found = model(**inputs).loss.item()
            weight.sub_(step * direction)
        return found

    step = 1e-2
    slope = (loss(step) - loss(-step)) / (2 * step)
    expected = float(direction.norm()) ** 2
    assert abs(slope - expected) <= 1e-3 * expected


@pytest.mark.parametrize("draw", [
    lambda y, most: y.uniform_(-most, most),
    lambda y, most: y.normal_(0, most)])
def test_noise_that_depends_on_the_number_of_rows_is_exact(session, draw):
    """NEFTune draws like this in a hook that it adds before stream()."""
    model = tiny()
    model.model.embed_tokens.register_forward_hook(
        lambda module, args, y: y + draw(torch.zeros_like(y), 5 / (
            y.shape[1] * y.shape[2]) ** 0.5))
    torch.manual_seed(4)
    expected = unstreamed(model, batch())
    sluice.stream(model, session=session, chunk=8)
    torch.manual_seed(4)
    assert_same(run(model, batch()), expected)


def test_a_backward_leaves_the_random_state_of_its_forward(session):
    model = with_mlp(FunctionalDropout)
    sluice.stream(model, session=session, chunk=16)
    loss = model(**batch()).loss
    state = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_models_own_chunked_attention_is_exact_or_refused(session):
    """llama4's layers attend within chunks of the sequence, as the mask says.
    """
    model = tiny("llama4_text", attention_chunk_size=24, num_local_experts=2,
                 num_experts_per_tok=1, intermediate_size_mlp=48,
                 interleave_moe_layer_step=1, no_rope_layers=[1, 1],
                 layer_types=["chunked_attention"] * 2)
    inputs = batch()
    expected = unstreamed(model, inputs)
    try:
        sluice.stream(model, session=session, chunk=16)
    except Unsupported:
        return
    assert_same(run(model, inputs), expected)


@pytest.mark.parametrize("given,names", [
    (dict(attention_mask=torch.ones(2, 1, 75, 75, dtype=torch.bool).tril()),
     "not \\[B, S\\]"),
    (dict(cu_seq_lens_q=torch.tensor([0, 75])), "cu_seq_lens_q"),
    (dict(output_attentions=True), "output_attentions"),
], ids=["4-D mask", "cu_seq_lens", "attention weights"])
def test_calls_that_cannot_be_exact_are_refused(session, given, names):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16)
    with pytest.raises(Unsupported, match=names):
        model(**batch(), **given)
    assert stream.stats().host_bytes == 0


def test_an_unknown_argument_as_long_as_the_sequence_is_refused(session):
    class Shifted(Wrapper):
        def forward(self, hidden_states, shift=None, **kwargs):
            return self.inner(hidden_states + shift, **kwargs)

    def made():
        model = tiny()
        for i in range(2):
            model.model.layers[i] = Shifted(model.model.layers[i])
            model.model.layers[i].register_forward_pre_hook(
                lambda m, a, k: (a, {**k, "shift": torch.arange(
                    a[0].shape[1])[None, :, None] * 0.01}), with_kwargs=True)
        return model

    with pytest.raises(Unsupported, match="'shift'.*rows={'shift': 1} to "
                       "stream\\(\\), which was tried"):
        sluice.stream(made(), session=session, chunk=16)
    model, inputs = made(), batch()
    expected = unstreamed(model, inputs)
    sluice.stream(model, session=session, chunk=16, rows={"shift": 1})
    assert_same(run(model, inputs), expected)


class Rounded(Wrapper):
    """Rounds activations as torchao's quantisation does, but more coarsely,
    because a tiny model has few values."""

    def forward(self, x):
        return self.inner(x) + 1e-3 * torch.sin(1e6 * x).sign()


def test_layers_that_round_activations_run_whole(session):
    model, inputs = wrap_mlps(Rounded), batch()
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    [(kind, _)] = stream.whole
    assert "it rounds what it computes with" in kind.why
    assert kind.own_attention
    assert_same(run(model, inputs), expected)


@pytest.mark.parametrize("kind, changes, cause", [
    ("bloom", {}, "a bias that is added to attention's scores, as ALiBi's"),
    ("mpt", dict(d_model=32, n_heads=4, n_layers=2), "a bias that is added"),
    ("gemma", dict(use_bidirectional_attention=True), "in both directions"),
])
def test_reasons_name_the_cause_and_not_its_symptom(session, kind, changes,
                                                    cause):
    model, inputs = tiny(kind, **changes), batch()
    if kind == "gemma":
        model.set_attn_implementation("sdpa")
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    [(found, _)] = stream.whole
    assert cause in found.why
    # Without a mask torch's kernel stores no scores.
    assert (found.bytes_per_pair > 0) == (kind != "gemma")
    assert_same(run(model, inputs), expected)


def test_a_decoder_that_takes_pictures_is_exact(session):
    """Chameleon's pictures become tokens of the sequence."""
    names = {f"IMGIMG{c}Z": 20 + i for i, c in enumerate("ABCDEFGH")}
    config = ChameleonConfig(**SIZES, vocabulary_map={"<image>": 5, **names},
                             vq_config=dict(
        embed_dim=16, num_embeddings=8, latent_channels=16, resolution=16,
        base_channels=32, channel_multiplier=[1], num_res_blocks=1,
        hidden_size=16))
    torch.manual_seed(0)
    model = ChameleonForConditionalGeneration(config).train()
    inputs = batch(length=300)
    inputs["input_ids"][:, 3:259] = 5  # 16 x 16 patches of a picture
    inputs["labels"][(inputs["labels"] >= 20) & (inputs["labels"] < 28)] = -100
    inputs["pixel_values"] = torch.randn(2, 3, 16, 16)
    expected = unstreamed(model, inputs)
    sluice.stream(model, session=session, chunk=64)
    assert_same(run(model, inputs), expected)


DROPPING = {
    "llama": dict(attention_dropout=0.1), "opt": dict(attention_dropout=0.1),
    "gpt2": {}, "gpt_bigcode": {}, "openai-gpt": {},  # 0.1 by default
    "gptj": dict(attn_pdrop=0.1),
    "biogpt": dict(attention_probs_dropout_prob=0.1),
}
LEARNED = dict(n_embd=32, n_layer=2, n_head=4, n_positions=512, rotary_dim=4,
               ffn_dim=48)


@pytest.mark.parametrize("kind", DROPPING)
def test_remedies_against_attention_dropout_work(session, kind):
    """The first remedy changes the model. The second remedy loads the model
    with another value."""
    changes = {**LEARNED, **DROPPING[kind]}
    model = tiny(kind, **changes)
    with pytest.raises(Unsupported, match="attention dropout of 0.1") as said:
        sluice.stream(model, session=session, chunk=16)
    paths, name, loaded = re.search(
        r": set ([\w. =]+) = 0 in each (\w+) of the model"
        r"(?:, or load the model with (\w+) = 0)?$", str(said.value)).groups()
    for module in model.modules():
        for path in paths.split(" = ") if type(module).__name__ == name else ():
            *parents, last = path.split(".")
            owner = functools.reduce(getattr, parents, module)
            setattr(owner, last, 0.0)
    sluice.stream(model, session=session, chunk=16)
    if kind != "openai-gpt":  # layers of openai-gpt have no config
        sluice.stream(tiny(kind, **{**changes, loaded: 0.0}),
                      session=session, chunk=16)


def test_router_logits_of_a_model_without_routers_are_refused(session):
    with pytest.raises(Unsupported, match="output_router_logits: it is not "
                       "known which modules"):
        sluice.stream(tiny(output_router_logits=True), session=session,
                      chunk=16)


def test_a_model_without_decoder_layers_is_refused(session):
    with pytest.raises(Unsupported, match="no list of decoder layers"):
        sluice.stream(nn.Linear(3, 3), session=session)


def test_a_second_backward_is_refused_with_a_remedy(session):
    model = tiny()
    sluice.stream(model, session=session, chunk=16)
    loss = model(**batch()).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once.*retain_graph"):
        loss.backward()


def test_weights_changed_before_the_backward_are_noticed(session):
    model = tiny()
    sluice.stream(model, session=session, chunk=16, check="off")
    loss = model(**batch()).loss
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.1)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("chunk", [0, -4])
def test_a_chunk_of_no_rows_is_refused(chunk):
    with pytest.raises(ValueError, match=f"chunk = {chunk}"):
        sluice.stream(tiny(), chunk=chunk)
