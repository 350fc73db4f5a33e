"""Tests eager attention, which layers compute by matrix products. Each form is
exact, or is refused with the operation's name, or makes its layers run whole.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from models import assert_same, batch, run, tiny, unstreamed
from torch import nn
from torch.nn import functional as F
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaModel,
    apply_rotary_pos_emb,
    repeat_kv,
)

import sluice


class WrittenOut(nn.Module):
    """A Llama's attention, computed by `form(self, q, k, v, mask)`. q, k, v
    are [B, H, S, D]; mask is what transformers passes to eager attention."""

    def __init__(self, inner, form, rows=96, window=None):
        super().__init__()
        self.inner, self.form = inner, form
        seen = torch.ones(rows, rows).tril()
        if window:
            seen -= seen.tril(-window)
        self.register_buffer("seen", seen.bool()[None, None])
        self.register_buffer("ones", seen[None, None])

    def forward(self, hidden_states, position_embeddings, attention_mask=None,
                **_):
        own = self.inner
        q, k, v = (p(hidden_states).view(*hidden_states.shape[:2], -1,
                                         own.head_dim).transpose(1, 2)
                   for p in (own.q_proj, own.k_proj, own.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        k, v = (repeat_kv(x, q.shape[1] // x.shape[1]) for x in (k, v))
        o, weights = self.form(self, q, k, v, attention_mask)
        o = o.transpose(1, 2).reshape(*hidden_states.shape[:2], -1)
        return own.o_proj(o), weights


def written(form, **options):
    model = tiny()
    for layer in model.model.layers:
        layer.self_attn = WrittenOut(layer.self_attn, form, **options)
    return model


def scaled(q, k):
    return torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])


def plain(self, q, k, v, mask):
    p = F.softmax(scaled(q, k) + mask, dim=-1)
    return torch.matmul(p, v), p


def in_place(self, q, k, v, mask):
    s = q @ k.transpose(-1, -2)
    s /= math.sqrt(q.shape[-1])
    s += mask[:, :, :, :k.shape[-2]]
    p = nn.Softmax(dim=-1)(s).to(v.dtype)
    return F.dropout(p, 0.1, training=False) @ v, None


def mask_first(self, q, k, v, mask):
    s = torch.matmul(q.float(), k.float().transpose(-1, -2)) + mask
    s = s * torch.tensor(q.shape[-1] ** -0.5)
    return torch.matmul(torch.softmax(s, -1, torch.float32).to(v.dtype), v), s


def heads_as_batch(self, q, k, v, mask):
    b, h, c, d = q.shape
    q, k, v = (x.reshape(b * h, c, d) for x in (q * d ** -0.5, k, v))
    s = torch.bmm(q, k.transpose(1, 2))
    assert s.size() == (b * h, c, c) and mask.size() == (b, 1, c, c)
    s = s.view(b, h, c, c) / 1.0 + mask
    s = torch.max(s, torch.full((), torch.finfo(s.dtype).min))
    p = F.softmax(s.view(b * h, c, c), dim=-1)
    o = torch.bmm(p, v)
    return o.view(b, h, c, d), p.view(b, h, c, c)


def added_to_zeros(self, q, k, v, mask):
    b, h, c, d = q.shape
    s = torch.baddbmm(torch.zeros(b * h, c, c), q.reshape(b * h, c, d),
                      k.reshape(b * h, c, d).transpose(1, 2), beta=1.0,
                      alpha=d ** -0.5).view(b, h, c, -1)
    return torch.matmul(F.softmax(s + mask, dim=-1), v), None


def where_seen(self, q, k, v, mask):
    c = q.shape[-2]
    s = torch.where(self.seen[:, :, :c, :c], scaled(q, k),
                    torch.tensor(torch.finfo(q.dtype).min))
    return torch.matmul(F.softmax(s + mask, dim=-1), v), None


def times_seen(self, q, k, v, mask):
    ones = self.ones[:, :, :q.shape[-2], :k.shape[-2]]
    s = scaled(q, k) * ones + -1e4 * (1 - ones)
    return torch.matmul(F.softmax(s, dim=-1), v), None


def product_beside(self, q, k, v, mask):
    """Adds a product with as many columns as a chunk has rows."""
    b, h, c, d = q.shape
    square = torch.linspace(-1, 1, d * 16).view(d, 16)
    v = v + torch.matmul(v, square.expand(b, h, d, 16)).relu().sum(
        -1, keepdim=True)
    return plain(self, q, k, v, mask)


EXACT = [plain, in_place, mask_first, heads_as_batch, added_to_zeros,
         where_seen, times_seen, product_beside]


def packed(length=75):
    """Returns two rows with documents that end at different positions."""
    inputs = batch(2, length)
    inputs["position_ids"] = torch.stack(
        [torch.cat([torch.arange(n) for n in ends])
         for ends in ((30, length - 30), (7, 41, length - 48))])
    return inputs


def exact(session, model, inputs):
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    try:
        assert_same(run(model, inputs), expected)
        assert stream.stats().host_bytes == 0 and stream.stats().blocks > 0
    finally:
        stream.unstream()


@pytest.mark.parametrize("form", EXACT)
def test_every_form_is_exact(session, form):
    exact(session, written(form), batch())


@pytest.mark.parametrize("form", [plain, heads_as_batch, where_seen])
def test_packed_documents_are_kept_apart(session, form):
    inputs = {**packed(), "use_cache": False}
    model = written(form)
    mixed = unstreamed(model, {**batch(), "use_cache": False})
    assert abs(mixed.loss - unstreamed(model, inputs).loss) > 1e-4
    exact(session, model, inputs)


@pytest.mark.parametrize("form", [where_seen, times_seen])
def test_a_window_in_a_buffer_longer_than_a_chunk_is_exact(session, form):
    """The part of the buffer that one chunk reads looks like a causal mask."""
    model = written(form, window=20)
    assert abs(unstreamed(model, batch()).loss
               - unstreamed(written(form), batch()).loss) > 1e-5
    exact(session, model, batch())


def test_bf16_error_is_no_larger_than_unstreamed(session):
    model = written(mask_first)
    exact_run = unstreamed(model, batch())
    model.bfloat16()
    own = unstreamed(model, batch())
    stream = sluice.stream(model, session=session, chunk=16)
    got = run(model, batch())
    stream.unstream()

    def error(of):
        return math.sqrt(sum(float((of.gradients[n].float() - g).norm()) ** 2
                             for n, g in exact_run.gradients.items()))
    assert error(got) <= 1.2 * error(own)


# --- operations that chunks cannot do ----------------------------------------

def with_bias(self, q, k, v, mask):
    far = -torch.arange(k.shape[-2]).flip(0) * 0.1
    return F.softmax(scaled(q, k) + mask + far, dim=-1) @ v, None


def with_dropout(self, q, k, v, mask):
    p = F.softmax(scaled(q, k) + mask, dim=-1)
    return F.dropout(p, 0.3, self.training) @ v, None


def head_mask(self, q, k, v, mask):
    p = F.softmax(scaled(q, k) + mask, dim=-1)
    return (p * torch.linspace(0.5, 1, q.shape[1]).view(-1, 1, 1)) @ v, None


def both_directions(self, q, k, v, mask):
    return F.softmax(scaled(q, k), dim=-1) @ v, None


def weights_are_used(self, q, k, v, mask):
    p = F.softmax(scaled(q, k) + mask, dim=-1)
    return p @ v + p.mean(), None


def against_itself(self, q, k, v, mask):
    return F.softmax((scaled(q, k) + mask) * -1, dim=-1) @ v, None


def over_the_rows(self, q, k, v, mask):
    return F.softmax(scaled(q, k) + mask, dim=-2) @ v, None


def own_mask(self, q, k, v, mask):
    c = q.shape[-2]
    made = torch.full((c, c), -1e30).triu(1)
    return F.softmax(scaled(q, k) + made, dim=-1) @ v, None


def by_einsum(self, q, k, v, mask):
    s = torch.einsum("bhid,bhjd->bhij", q, k) * 0.3
    ones = self.ones[:, :, :q.shape[-2], :q.shape[-2]]
    return F.softmax(s + -1e4 * (1 - ones), dim=-1) @ v, None


def from_the_middle(self, q, k, v, mask):
    """Reads the buffer from row 5 on, in place of row 0."""
    c = q.shape[-2]
    s = torch.where(self.seen[:, :, 5:5 + c, :c], scaled(q, k),
                    torch.tensor(-1e9))
    return F.softmax(s, dim=-1) @ v, None


# Form -> part of the error that refuses it. A user can write these forms in
# another way.
REFUSED = {with_bias: "'add'", with_dropout: "attention dropout of 0.3",
           head_mask: "'mul'", weights_are_used: "'mean'",
           against_itself: "'mul'", over_the_rows: "'softmax'"}
# Form -> the reason why layers with it run whole.
WHOLE = {both_directions: "in both directions",
         own_mask: "a bias that is added", by_einsum: "without attention",
         from_the_middle: "without attention"}


@pytest.mark.parametrize("form", REFUSED)
def test_operations_that_chunks_cannot_do_are_refused_in_stream(session, form):
    model = written(form)
    before = copy.deepcopy(model)
    with pytest.raises(sluice.Unsupported, match=REFUSED[form]):
        sluice.stream(model, session=session, chunk=16)
    if form is not with_dropout:
        assert run(model, batch()).loss == run(before, batch()).loss


@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.filterwarnings("ignore:sluice")
def test_layers_with_operations_that_chunks_cannot_do_run_whole(session, form):
    whole(session, written(form), WHOLE[form])


def whole(session, model, why):
    inputs = batch()
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    assert {why in kind.why for kind, _ in stream.whole} == {True}
    assert_same(run(model, inputs), expected)
    stream.unstream()


def test_a_whole_layers_attention_runs_by_chunks(session):
    model = written(plain)
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda m, a, y: y + y.roll(1, 1))
    inputs = batch()
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16)
    assert {(kind.own_attention, kind.bytes_per_pair)
            for kind, _ in stream.whole} == {(False, 0)}
    assert_same(run(model, inputs), expected)
    assert stream.stats().blocks > 0


# --- dense masks that a model makes itself -----------------------------------

class OwnMask(LlamaModel):
    """Makes its own mask, without transformers' mask functions."""

    def forward(self, input_ids=None, attention_mask=None, use_cache=None,
                **_):
        x = self.embed_tokens(input_ids)
        places = torch.arange(x.shape[1])[None]
        positions = self.rotary_emb(x, places)
        mask = self.made(x, attention_mask)
        for layer in self.layers:
            x = layer(x, attention_mask=mask, position_embeddings=positions)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


def dense(self, x, padding, more=0):
    """Returns an additive mask [B, 1, S, S + more]: causal, in a window of 20,
    with padding hidden from all rows."""
    rows = x.shape[1]
    seen = torch.ones(rows, rows + more).tril()
    seen = (seen - seen.tril(-20))[None, None].repeat(x.shape[0], 1, 1, 1)
    if padding is not None:
        seen[..., :rows] *= padding[:, None, None]
    return (1 - seen) * torch.finfo(x.dtype).min


def with_room(self, x, padding):
    return dense(self, x, padding, more=1)


def asked_for_and_changed(self, x, padding):
    asked = create_causal_mask(self.config, x, padding, None)
    return asked + dense(self, x, None)


def leaning(self, x, padding):
    far = torch.arange(x.shape[1])
    return dense(self, x, padding) - 0.1 * (far[:, None] - far).abs()


def sees_all(self, x, padding):
    return torch.zeros(x.shape[0], 1, x.shape[1], x.shape[1])


def own_mask_model(made):
    model = written(in_place) if made is with_room else tiny()
    model.model.__class__ = type("Own", (OwnMask,), {"made": made})
    return model


@pytest.mark.parametrize("made", [dense, with_room])
def test_a_full_mask_made_by_the_model_is_used(session, made):
    inputs = batch()
    assert abs(unstreamed(own_mask_model(made), inputs).loss
               - unstreamed(tiny(), inputs).loss) > 1e-5
    exact(session, own_mask_model(made), inputs)


def test_padding_in_a_mask_made_by_the_model_is_used(session):
    inputs = batch()
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 60:] = 0
    inputs["labels"][1, 60:] = -100
    inputs["attention_mask"][0, 70:] = 0
    inputs["labels"][0, 70:] = -100
    exact(session, own_mask_model(dense), inputs)


@pytest.mark.parametrize("made, word", [
    (asked_for_and_changed, "a mask tensor"), (leaning, "a bias"),
    (sees_all, "not, for each row, one interval")])
@pytest.mark.filterwarnings("ignore:sluice")
def test_layers_with_an_unsupported_mask_of_the_model_run_whole(session, made,
                                                                word):
    whole(session, own_mask_model(made), word)


# --- products that only look like scores -------------------------------------

class Experts(nn.Module):
    """E experts as wide as a chunk has rows (c), so that x times their weights
    is [E, c, c]."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        torch.manual_seed(4)
        self.up = nn.Parameter(torch.randn(2, 32, 16) / 6)
        self.down = nn.Parameter(torch.randn(2, 16, 32) / 4)

    def forward(self, x):
        rows = x.reshape(1, -1, x.shape[-1]).expand(2, -1, -1)
        up = self.form(torch.bmm(rows, self.up))
        return torch.bmm(up, self.down).sum(0).view_as(x)


def gated_in_place(up):
    up.mul_(torch.sigmoid(up.detach()))
    return torch.relu_(up)


def indexed(up):
    return up[..., :] ** 2 - up


@pytest.mark.parametrize("form", [gated_in_place, indexed])
def test_a_product_with_a_weight_is_not_taken_for_scores(session, form):
    """The product is [E, c, c] only for chunks of 16 rows. The probe's chunks
    have another length."""
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn = WrittenOut(layer.self_attn, plain)
        layer.mlp = Experts(form)
    inputs = batch(rows=1)
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(run(model, inputs), expected)
    stream.unstream()


def test_a_chunk_has_a_mask_of_its_own_length(session):
    def check(module, args, given):
        rows = given["hidden_states"].shape[1]
        assert given["attention_mask"].shape[-2:] == (rows, rows)

    model = tiny()
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(check, with_kwargs=True)
    expected = unstreamed(model, batch())
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert not stream.whole
    assert_same(run(model, batch()), expected)
    stream.unstream()


def scaled_in_place(self, q, k, v, mask):
    s = torch.matmul(q, k.transpose(-1, -2))
    s.div_(math.sqrt(q.shape[-1]))
    return torch.matmul(F.softmax(s + mask, dim=-1), v), None


def test_scores_that_are_written_in_place_are_refused(session):
    with pytest.raises(sluice.Unsupported, match="'div_' in place"):
        sluice.stream(written(scaled_in_place), session=session, chunk=16)
