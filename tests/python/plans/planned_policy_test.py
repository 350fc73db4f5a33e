"""With `policy="plan"` a step is measured, the daemon plans, and the stream
follows the plan."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from models import assert_same, batch, run, tiny, unstreamed
from private_daemon import PrivateDaemon
from support import await_true, is_running, start

import sluice
from sluice.base.errors import Status
from sluice.plan.planned import BASE, recomputed
from sluice.plan.policy import Policy

CHUNK = 16
PRODUCTS = 7  # per layer: q, k, v, o, gate, up, down


def planned(session, model, steps=4, **options):
    """Returns the stream after `steps` steps, and each step's run."""
    stream = sluice.stream(model, session=session, chunk=CHUNK, policy="plan",
                           quiet=True, **options)
    return stream, [run(model, batch()) for _ in range(steps)]


def test_the_third_step_follows_the_plan_with_the_same_gradients(session):
    stream, runs = planned(session, tiny())
    expected = unstreamed(tiny(), batch())
    for made in runs:
        assert_same(made, expected, unstreamed(tiny(), batch(), "sdpa"))
        for name, gradient in runs[0].gradients.items():
            assert torch.equal(made.gradients[name], gradient)
    swapped = {c["name"]: c["swap"] for c in stream.plan["classes"]}
    assert len(swapped) == 1 + PRODUCTS and swapped.pop(BASE) == 1.0
    assert any(swapped.values()), "nothing swapped on a link without limit"
    assert [stream.policy.share(n).swap for n in swapped] == list(
        swapped.values())
    assert stream.stats().host_bytes == 0
    assert stream.stats().host_peak_bytes <= stream.plan["host_bytes"]
    stream.unstream()


def test_layers_without_a_backward_do_not_delay_the_plan(session):
    model = tiny()
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    stream, _ = planned(session, model)
    assert stream.plan is not None and stream.policy.shares
    stream.unstream()


def test_the_profile_describes_the_measured_step(session, monkeypatch):
    seen = []
    monkeypatch.setattr(
        type(session), "plan", lambda self, given, **_: seen.append(
            given) or {"infeasible": "only looking"})
    stream, _ = planned(session, tiny(), steps=3)
    stream.unstream()
    [given] = seen
    rows, layers = 2 * 75, 2
    classes = {c["name"]: c for c in given["classes"]}
    # DESIGN.md: e H + 2 e Hkv + 4 H + 4 heads bytes per token; in fp32 e = 4.
    assert classes[BASE]["bytes_per_layer"] == rows * (
        4 * 32 + 2 * 4 * 16 + 4 * 32 + 4 * 4)
    assert classes["mlp.up_proj.weight"]["bytes_per_layer"] == rows * 48 * 4
    assert classes["self_attn.k_proj.weight"]["bytes_per_layer"] == (
        rows * 16 * 4)
    assert given["layers"] == layers and given["job"] == 0
    windows = [given["forward_layer_seconds"], given["backward_layer_seconds"]]
    recomputed = sum(c["recompute_seconds"] for c in classes.values())
    assert 0 < recomputed < windows[0] and 0 < windows[1]
    # Replays compute neither a layer's last product nor k and v.
    assert {n for n, c in classes.items() if not c["recompute_seconds"]} == {
        BASE, "mlp.down_proj.weight", "self_attn.k_proj.weight",
        "self_attn.v_proj.weight"}
    # Forward copies to the host what the host holds after forward.
    assert abs(given["forward_d2h_fixed"]
               - classes[BASE]["bytes_per_layer"]) <= rows * 4 * 48
    assert given["backward_h2d_fixed"] > classes[BASE]["bytes_per_layer"] / 2


def test_a_plan_reports_what_it_recomputes_and_its_seconds(capfd, session):
    profiles = []
    ask = session.plan

    def plan(given, **options):
        profiles.append(given)
        return ask(given, **options)

    session.plan = plan
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=CHUNK, policy="plan")
    for _ in range(3):
        run(model, batch())
    [asked] = profiles
    nothing = [{**c, "swap": 0.0} for c in stream.plan["classes"]
               if c["name"] != BASE]
    assert recomputed({"classes": nothing}, asked) == (
        2 * sum(c["bytes_per_layer"] for c in asked["classes"][1:]),
        pytest.approx(2 * sum(c["recompute_seconds"]
                              for c in asked["classes"])))
    nbytes, seconds = recomputed(stream.plan, asked)
    assert f"{nbytes / 2**30:.3g} GiB computed again in {seconds:.2g} s" in (
        capfd.readouterr().err)
    stream.unstream()


def test_all_products_have_a_cost_if_each_replay_is_checked(
        session, monkeypatch):
    """With check="always" replays compute a layer's last product, too."""
    seen = []
    monkeypatch.setattr(
        type(session), "plan", lambda self, given, **_: seen.append(
            given) or {"infeasible": "only looking"})
    stream, _ = planned(session, tiny(), steps=3, check="always")
    stream.unstream()
    assert all(c["recompute_seconds"] > 0 for c in seen[0]["classes"]
               if c["name"] != BASE)


def test_too_little_host_memory_swaps_less():
    """4 MiB of host memory hold what a step needs, but not all products that
    could be swapped."""
    def swapped(host_bytes):
        daemon = PrivateDaemon(gpu_bytes=64 << 20, host_bytes=host_bytes)
        inputs = batch(2, 1280)
        model = tiny(max_position_embeddings=1280)
        with sluice.Session(daemon.socket) as session:
            stream = sluice.stream(model, session=session, chunk=128,
                                   policy="plan", quiet=True)
            for _ in range(3):
                made = run(model, inputs)
            parts = {c["name"]: c["swap"] for c in stream.plan["classes"]
                     if c["name"] != BASE}
            # Swapping these saves nothing, because no replay computes them.
            for name in ("mlp.down_proj", "self_attn.k_proj",
                         "self_attn.v_proj"):
                assert parts.pop(name + ".weight") == 0
            assert stream.stats().host_peak_bytes <= stream.plan["host_bytes"]
            assert stream.plan["host_bytes"] <= host_bytes
            stream.unstream()
        daemon.close()
        return sum(parts.values()) / len(parts), made.loss

    plenty, loss = swapped(256 << 20)
    tight, same = swapped(4 << 20)
    assert plenty == 1.0 and 0 <= tight < 0.9 and loss == same


def test_a_full_link_swaps_almost_nothing():
    """In 3 ms, a link of 20 MB/s can carry only the bytes that must be copied.
    """
    daemon = PrivateDaemon(gpu_bytes=64 << 20, host_bytes=256 << 20,
                           link_bytes_per_second=2e7)
    with sluice.Session(daemon.socket) as session:
        model = tiny()
        stream, _ = planned(session, model, steps=2)
        stream.planning._session = Asked(
            session, forward_layer_seconds=3e-3, backward_layer_seconds=9e-3)
        run(model, batch())
        assert stream.plan["alpha_limited_by"] == "bandwidth"
        assert sum(c["swap"] for c in stream.plan["classes"]
                   if c["name"] != BASE) < 0.1 * PRODUCTS
        stream.unstream()
    daemon.close()


def test_without_a_daemon_there_is_no_plan_and_training_goes_on(
        daemon, session, capsys):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=CHUNK, policy="plan")
    first = run(model, batch())
    os.kill(daemon.pid, signal.SIGKILL)
    await_true("sluiced is gone", lambda: not is_running(daemon.pid))
    losses = [run(model, batch()).loss for _ in range(3)]
    assert losses == [first.loss] * 3
    assert stream.plan is None and stream.policy == Policy()
    assert capsys.readouterr().err.count("no plan, all is computed again") == 1
    stream.unstream()


def test_a_forward_without_backward_is_not_profiled(session):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=CHUNK, policy="plan",
                           quiet=True)
    for _ in range(3):
        model(**batch())
    assert stream.plan is None
    run(model, batch())
    run(model, batch())
    assert stream.plan is not None
    stream.unstream()


def test_ranks_of_a_job_are_planned_together(daemon, session):
    """The first rank gets its answer only after both ranks have asked. Each
    rank gets its part of the plan."""
    model = tiny()
    stream, _ = planned(session, model, steps=2)
    stream.planning._session = asked = Asked(session)
    run(model, batch())
    stream.unstream()

    ranks = [sluice.Session(daemon.socket, job="two", rank=r, world=2, gpu=r)
             for r in range(2)]
    plans = {}

    def ask(session):
        plans[session.rank] = session.plan(
            {**asked.profile, "rank": session.rank, "gpu": session.gpu}, 30)

    threads = [threading.Thread(target=ask, args=[r]) for r in ranks]
    threads[0].start()
    threads[0].join(0.3)
    assert threads[0].is_alive(), "rank 0 did not wait for rank 1"
    threads[1].start()
    for thread in threads:
        thread.join(30)
    for rank in ranks:
        assert [r["rank"] for r in plans[rank.rank]["ranks"]].count(
            rank.rank) == 1
        rank.close()


class Asked:
    """A session that changes profiles before it records and sends them."""

    def __init__(self, session, **changes):
        self._session, self._changes = session, changes
        self.profile = None

    def plan(self, profile, **options):
        self.profile = {**profile, **self._changes}
        return self._session.plan(self.profile, **options)

    def __getattr__(self, name):
        return getattr(self._session, name)


def test_an_invalid_profile_is_refused_in_one_line(session):
    with pytest.raises(sluice.Error) as error:
        session.plan({"format": "sluice.rank_profile", "version": 2})
    assert error.value.status == Status.INVALID_ARGUMENT
    assert "\n" not in str(error.value)


WAITS_ALONE = """
import time, sluice, sluice.native.waiting
from sluice.base.errors import Error
sluice.native.waiting._ASK_S = 30  # the cores may be busy
with sluice.Session({socket!r}, job="two", rank=0, world=2) as session:
    try:
        session.plan({profile!r}, 50)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


def test_a_wait_for_a_plan_names_the_missing_ranks_and_ends_by_ctrl_c(
        daemon, session):
    model = tiny()
    stream, _ = planned(session, model, steps=2)
    stream.planning._session = asked = Asked(session)
    run(model, batch())
    stream.unstream()
    child = start(WAITS_ALONE.format(socket=daemon.socket,
                                     profile=asked.profile))
    said = child.stderr.readline()
    assert said == ("sluice: rank 0 of job two waits for a plan, at most 50 s: "
                    "1 of 2 ranks of the job on this node have asked; not "
                    "attached: 1\n")
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (out, err, child.returncode) == ("stopped\n", "", 0)
    assert time.monotonic() - began < 20, "the interrupt did not end the wait"
