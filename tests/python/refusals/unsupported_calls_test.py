"""Unsupported calls of a streamed model are refused with an error that names
them."""

from __future__ import annotations

import pytest
import torch
from models import assert_same, batch, run, tiny, unstreamed
from titan import titan, tokens
from torch.func import functional_call

import sluice
from sluice import Unsupported


def of_parameters(model):
    """Returns the loss as a function of the model's parameters, and the
    parameters."""
    return (lambda given: functional_call(model, given, (), batch()).loss,
            {n: p.detach() for n, p in model.named_parameters()})


def of_rows(model):
    """Returns a sum of the decoder's output as a function of embeddings, and
    embeddings."""
    return (lambda x: model.model(inputs_embeds=x, use_cache=False
                                  ).last_hidden_state.sum(),
            torch.randn(2, 75, 32))


TRANSFORMS = {
    "grad": lambda function, at: torch.func.grad(function)(at),
    "vjp": lambda function, at: torch.func.vjp(function, at),
    "jvp": lambda function, at: torch.func.jvp(function, (at,), (at,)),
    "vmap": lambda function, at: torch.func.vmap(
        function, randomness="different")({
            n: p.expand(2, *p.shape) for n, p in at.items()}
            if isinstance(at, dict) else at.expand(2, *at.shape)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("what", [of_parameters, of_rows])
def test_torch_func_is_refused_by_name(session, name, what):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(Unsupported, match="within torch.func.*unstream"):
        TRANSFORMS[name](*what(model))
    assert_same(run(model, batch()), unstreamed(tiny(), batch()))
    stream.unstream()


def test_torch_func_over_the_users_own_layers_is_refused(session):
    model, ids = titan(), tokens()
    stream = sluice.stream(layers=model.layers, attention="sdpa",
                           rows={"freqs_cis": 0}, chunk=16, session=session,
                           sample=lambda: model(ids), quiet=True)
    with pytest.raises(Unsupported, match="within torch.func"):
        torch.func.grad(lambda given: functional_call(
            model, given, (ids,)).sum())(
                {n: p.detach() for n, p in model.named_parameters()})
    stream.unstream()


# --- calls after unstream() -------------------------------------------------

@pytest.mark.parametrize("hidden", ["device", "host"])
@pytest.mark.parametrize("own", [False, True])
def test_a_backward_after_unstream_is_refused(session, hidden, own):
    model = tiny()
    stream = sluice.stream(model, session=None if own else session, chunk=16,
                           quiet=True, hidden=hidden)
    loss = model(**batch()).loss
    stream.unstream()
    with pytest.raises(sluice.Error, match=r"unstream\(\) has ended.*run the "
                       r"forward again, and unstream\(\) after backward"):
        loss.backward()
    assert_same(run(model, batch()), unstreamed(tiny(), batch()))


def test_a_session_that_was_closed_under_a_stream_is_named(daemon):
    session, model = sluice.Session(daemon.socket), tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    loss = model(**batch()).loss
    session.close()
    for call in (loss.backward, lambda: model(**batch())):
        with pytest.raises(sluice.Error, match="the session of this memory is "
                           r"closed.*before Session.close\(\)"):
            call()
    stream.unstream()


# --- attention masks --------------------------------------------------------

def added(least):
    mask = torch.zeros(2, 75)
    mask[1, 60:] = least
    return mask


@pytest.mark.parametrize("mask, why", [
    (added(-float("inf")), "-inf, neither 0 nor 1.*== 0"),
    (added(torch.finfo(torch.float32).min), "e[+]38, neither"),
    (1 - added(-1e4), "10001, neither"),
    (1 + (torch.arange(75) > 30).expand(2, -1).long(), "with 2.*position_ids"),
    (torch.ones(2, 70), "70 columns for 75 tokens"),
    (torch.ones(2, 80), "80 columns for 75 tokens")])
def test_a_mask_that_transformers_would_misread_is_refused(session, mask, why):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    with pytest.raises(Unsupported, match=why):
        run(model, {**batch(), "attention_mask": mask})
    whole = {**batch(), "attention_mask": torch.ones(2, 75)}
    assert_same(run(model, whole), unstreamed(tiny(), whole))
    stream.unstream()


# --- the probe's call of the model ------------------------------------------

class Needy(type(tiny())):
    """A model with a forward that requires more than ids."""

    def forward(self, input_ids=None, style=None, **rest):
        return super().forward(input_ids=input_ids + style, **rest)


def test_a_failure_of_the_stream_itself_is_raised(session, monkeypatch):
    """Guards against ignoring the stream's own failure if the model alone
    works."""
    def broken(*_):
        raise AttributeError("'Step' object has no attribute 'of_ours'")

    monkeypatch.setattr("sluice.hf.padding.watch", broken)
    # A model that no test has probed.
    with pytest.raises(Unsupported, match="of_ours"):
        sluice.stream(tiny(intermediate_size=40), session=session, chunk=16,
                      quiet=True)


def test_a_model_that_needs_more_than_ids_is_streamed(session):
    model, given = tiny(), {**batch(), "style": 0}
    model.__class__ = Needy
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(run(model, given), unstreamed(tiny(), batch()))
    assert stream.stats().blocks > 0
    stream.unstream()
