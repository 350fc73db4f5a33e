"""An invalid argument changes nothing and is refused in one line, which names
the argument, its value and the valid values."""

from __future__ import annotations

import dataclasses
import gc
import math
import pickle

import pytest
import torch
from models import VOCAB, batch, run, tiny
from titan import titan

import sluice
from sluice.base import arguments
from sluice.base.errors import Status
from sluice.node import settings

NAN, INF, HUGE = math.nan, math.inf, 2**70
IDS = batch()["input_ids"]


def assert_refused(call, *words):
    with pytest.raises(sluice.Invalid) as raised:
        call()
    line = str(raised.value)
    assert isinstance(raised.value, (ValueError, sluice.Error))
    assert raised.value.status is Status.INVALID_ARGUMENT
    assert "\n" not in line and len(line) < 400, line
    assert all(word in line for word in words), line


# --- stream -----------------------------------------------------------------

WRONG = {
    "model": ["llama", 3, [], object()],
    "config": [{"chunk": 16}, "chunk=16", 3],
    "session": ["/run/sluice/session.sock", 3],
    "chunk": [0, -1, 1.5, NAN, HUGE, "16", "", True, []],
    "batch": [0, -1, 1.5, NAN, "2", None],
    "rows": [3, "freqs", ["freqs"], {"freqs": "1"}, {3: 1}, {"freqs": 1.0},
             {"freqs": HUGE}],
    "policy": [None, 3, "all", ["mlp.*"], {"mlp.*": 0.5}, {3: {"keep": 1}},
               {"mlp.*": {"keep": "x"}}, {"mlp.*": {"keep": NAN}},
               {"mlp.*": {"swap": -0.1}}, {"mlp.*": {"hold": 1}},
               {"": {"keep": 1}}],
    "check": ["", "never", None, True],
    "min_tokens": [-1, 1.5, NAN, HUGE, "64", None, True],
    "head": ["row", "", None, "none"],
    "group": [3, "world", [0, 1], -100],
    "hidden": ["cpu", "", None],
    "rerun": [-0.1, 1.5, NAN, "0.5", None, True],
    "kernel": ["", "sdpa", None, True],
    "hbm": [-1, 1.5, NAN, HUGE, "64", True],
    "stalled_s": [-1, 0, NAN, "300", None, True],
    "quiet": ["", 1, None],
}


@pytest.mark.parametrize("name", WRONG)
def test_stream_refuses_invalid_arguments(daemon, session, name):
    model = tiny()
    for value in WRONG[name]:
        given = {"model": model, "session": session, "quiet": True,
                 name: value}
        assert_refused(lambda given=given: sluice.stream(**given),
                       "stream: ", name)
    assert all("forward" not in vars(m) for m in model.modules())
    assert session.limits().host_free_bytes > 0


def test_arguments_override_a_config(session):
    config = sluice.StreamConfig(chunk=16, hidden="host")
    made = sluice.stream(tiny(), config, chunk=24, session=session, quiet=True)
    assert (made.chunk, made.hidden) == (24, "host")
    fields = dataclasses.fields(config)
    assert len(fields) <= 8
    assert_refused(lambda: sluice.stream(tiny(), sluice.StreamConfig(
        chunk=0), session=session), "stream: ", "chunk = 0")


def test_every_argument_of_stream_has_a_kind_and_a_test():
    names = {field.name for field in dataclasses.fields(settings.Fields)}
    assert names == set(settings.KINDS)
    assert {*names, "model", "config"} == {
        *WRONG, "layers", "attention", "sample"}
    with pytest.raises(TypeError, match="chunks"):
        sluice.stream(tiny(), chunks=16)


@pytest.mark.parametrize("given, words", [
    (dict(layers=3, attention="sdpa"), "layers = 3"),
    (dict(layers="ab", attention="sdpa"), "layers"),
    (dict(layers=[], attention="sdpa"), "layers = []"),
    (dict(layers=[1, 2], attention="sdpa"), "layers"),
    (dict(layers=torch.nn.ModuleList(), attention="sdpa"), "layers"),
    (dict(layers=list(titan().layers.values()), attention="flash"),
     "attention = 'flash'"),
    (dict(layers=list(titan().layers.values()), attention="sdpa", sample=3),
     "sample = 3"),
    (dict(model=titan(), sample=print), "pass a model, or layers"),
    ({}, "pass a model, or layers")],
    ids=lambda v: v if isinstance(v, str) else "")
def test_stream_refuses_invalid_layers(given, words):
    assert_refused(lambda given=given: sluice.stream(**given),
                   "stream: ", words)


def test_a_refused_call_starts_no_daemon(monkeypatch):
    from sluice.native import user_daemon
    monkeypatch.setattr(user_daemon, "socket_of_the_node", pytest.fail)
    assert_refused(lambda: sluice.stream(tiny(), min_tokens=-1), "min_tokens")
    assert_refused(lambda: sluice.Session(gpu=-1), "gpu")


def test_the_head_is_set_only_to_an_exact_choice(session):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    for how in ("row", None, "none", 3):
        assert_refused(lambda how=how: setattr(stream, "head", how), "head")
    assert stream.head == "rows"
    stream.unstream()
    model.loss_function = lambda logits, **_: logits.square().mean()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert stream.head == "whole"
    assert_refused(lambda: setattr(stream, "head", "rows"), "not the same")


# --- sessions ---------------------------------------------------------------

@pytest.mark.parametrize("name, values", {
    "socket": ["", 3, b"/x", 1.5],
    "job": ["", 3, "a\0b", "a\nb", "\ud800", "j" * 65],
    "rank": [-1, 0.0, "0", NAN, HUGE, True],
    "world": [0, -1, 1.0, "1", HUGE, 2**32],
    "gpu": [-1, 0.0, "0", HUGE],
    "local_world": [0, -1, 1.5, "1", HUGE],
    "lease_wait_s": [-1, "1", NAN, HUGE],
}.items())
def test_a_session_refuses_invalid_arguments(name, values):
    for value in values:
        assert_refused(lambda value=value: sluice.Session(**{name: value}),
                       "Session: ", name)


def test_rank_and_local_world_must_fit_the_world():
    assert_refused(lambda: sluice.Session(rank=2, world=2),
                   "rank 2 of world 2")
    assert_refused(lambda: sluice.Session(world=2, local_world=3),
                   "local_world = 3", "2")


@pytest.mark.parametrize("call, good, wrong", [
    ("lease_host", dict(nbytes=1), {
        "nbytes": [0, -1, 1.5, NAN, HUGE, 2**64, "1", None]}),
    ("lease_gpu", dict(nbytes=1), {"nbytes": [0, -1, HUGE, "1"],
                                   "wait_s": [-1, NAN, "1"]}),
    ("report", dict(step=1, seconds=1.0, tokens=1), {
        "step": [-1, 1.5, HUGE, "1", None], "tokens": [-1, NAN, HUGE],
        "seconds": [-1, NAN, INF, "1", None], "loss": ["1", None],
        "copies": [3], "gpu_peak_bytes": [-1, 1.5],
        "host_peak_bytes": [-1, HUGE]}),
    ("plan", dict(profile={}), {
        "profile": [3, None, "{}", [1], {"a": NAN}, {"a": object()},
                    {"a": {1}}],
        "timeout_s": [0, -1, NAN, INF, "60", None], "quiet": [None]}),
    ("answer_change", dict(number=2**64 - 1, taken=False), {
        "number": [-1, HUGE, "1", 1.0], "taken": [None, 1],
        "note": [None, 3]}),
], ids=lambda v: v if isinstance(v, str) else "")
def test_calls_of_a_session_refuse_invalid_arguments(session, call, good,
                                                     wrong):
    before = session.limits()
    for name, values in wrong.items():
        for value in values:
            arguments = {**good, name: value}
            assert_refused(lambda arguments=arguments: getattr(session, call)(
                **arguments), f"{call}: ", name)
    assert session.limits() == before and not session.closed


# --- the user's own rows ----------------------------------------------------

@pytest.mark.parametrize("given, words", [
    ({"input_ids": [[1, 2]]}, "input_ids"),
    ({"input_ids": IDS[0]}, "input_ids = a int64 tensor of shape (75,)"),
    ({"input_ids": IDS.float()}, "input_ids = a float32 tensor"),
    ({"input_ids": IDS, "labels": IDS[:, 1:]}, "labels of shape (2, 74)"),
    ({"input_ids": IDS, "labels": IDS[:1]}, "labels of shape (1, 75)"),
    ({"input_ids": IDS, "labels": 3}, "labels = 3"),
    ({"input_ids": IDS, "position_ids": IDS[:, :3]}, "position_ids"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_shard_refuses_invalid_arguments(session, given, words):
    stream = sluice.stream(tiny(), session=session, quiet=True)
    assert_refused(lambda: stream.shard(**given), "shard: ", words)


def test_the_mean_of_a_shard_takes_only_a_sum(session):
    stream = sluice.stream(tiny(), session=session, quiet=True)
    local = stream.shard(IDS, IDS)
    for total in (3.0, None, torch.ones(3), torch.ones((), dtype=torch.int)):
        assert_refused(lambda total=total: local.mean(total), "total")
    assert_refused(lambda: stream.shard(IDS).mean(torch.ones(())), "labels")


def test_same_rows_refuses_invalid_arguments():
    for group in (None, 3, -100):
        assert_refused(lambda group=group: sluice.same_rows([1], group),
                       "group")
    assert_refused(lambda: sluice.same_rows(3, None), "same_rows: ")


# --- log-probabilities ------------------------------------------------------

@pytest.fixture(scope="module")
def models():
    """Returns a streamed model, a model that is no longer streamed, and the
    first model's stream."""
    made = tiny(), tiny()
    streams = [sluice.stream(model, chunk=16, quiet=True) for model in made]
    streams[1].unstream()
    yield *made, streams[0]
    streams[0].unstream()


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("given, words", [
    (dict(temperature=0), "temperature = 0"),
    (dict(temperature=-1.0), "temperature"), (dict(temperature=NAN), "nan"),
    (dict(temperature=INF), "inf"), (dict(temperature="1"), "temperature"),
    (dict(entropy=None), "entropy"), (dict(labels=3), "labels = 3"),
    (dict(labels=None), "labels or targets"), (dict(targets=IDS), "not both"),
    (dict(labels=IDS.float()), "float32"), (dict(labels=IDS[0]), "(75,)"),
    (dict(labels=IDS[:, 1:]), "shape (2, 74) for (2, 75)"),
    (dict(labels=IDS - 100), "a target of -"),
    (dict(labels=IDS + VOCAB), f"at most {VOCAB - 1}"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_logprobs_refuses_invalid_arguments(models, streams, given, words):
    streamed, plain, stream = models
    model = streamed if streams else plain
    assert_refused(lambda: sluice.logprobs(model, **{
        "input_ids": IDS, "labels": IDS, **given}), "logprobs: ", words)
    if streams:
        gc.collect()  # a traceback keeps the forward's tensors alive
        assert stream.stats().host_bytes == 0
        run(model, batch())


def test_logprobs_takes_only_a_model():
    assert_refused(lambda: sluice.logprobs(3, labels=IDS), "model = 3")


# --- valid, missing and unknown arguments ------------------------------------

def test_unusual_valid_values_are_accepted(session):
    model = tiny()
    for odd in (dict(chunk=2**40), dict(min_tokens=2**40), dict(policy={}),
                dict(rows={}), dict(rows=None), dict(stalled_s=INF),
                dict(stalled_s=1), dict(rows={"freqs": None}), dict(hbm=0),
                dict(hbm=2**50)):
        stream = sluice.stream(model, session=session, quiet=True, **odd)
        run(model, batch())
        stream.unstream()


def test_missing_and_unknown_arguments_raise_type_error():
    with pytest.raises(TypeError, match="chunks"):
        sluice.stream(tiny(), chunks=3)
    with pytest.raises(TypeError, match="missing.*model"):
        sluice.logprobs()


def test_refusals_can_be_pickled_and_show_values_in_one_line():
    error = arguments.invalid("x")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert arguments.shown("a\nb" * 100).endswith("…")
    assert "\n" not in arguments.shown(object)
