"""Tests how `chunk="auto"` measures, chooses and reports a chunk size."""

from __future__ import annotations

import random
import time

import pytest
import torch
import torch.distributed as dist
from models import batch, run, tiny

import sluice
from sluice.plan import chunk_size
from sluice.plan.chunk_size import (
    BUDGET_S,
    CHUNKS,
    NEAR,
    SIZES,
    ChunkChoice,
    Heads,
    agreed,
    choose,
)
from sluice.ranks.board import Board

BLOCKS, SQUARES = CHUNKS * (CHUNKS + 1) / 2, CHUNKS ** 2 / 2


@pytest.mark.parametrize("on_cpu", (False, True))
@pytest.mark.parametrize("seed", range(30))
def test_the_smallest_allowed_chunk_near_the_fastest_is_chosen(seed, on_cpu):
    chance = random.Random(seed)
    host = 10 ** chance.uniform(-5, -2)
    # At one size or more, a block takes the device more than twice the host's
    # time.
    pair = host / chance.choice(SIZES[1:]) ** 2 * chance.uniform(2.1, 50)
    walked = {}

    def walk(rows):
        """Returns the seconds of a walk if the device takes `pair` for each
        pair of rows."""
        of_host, of_device = BLOCKS * host, SQUARES * pair * rows * rows
        walked[rows] = (of_host + of_device if on_cpu else
                        max(of_host, of_device))
        return walked[rows]

    made = choose(host, walk)
    assert made.host_seconds == host
    # The host's time may hide a part of the device's.
    assert made.device_seconds <= pair * made.rows ** 2 * (1 + 1e-9)
    hidden = [rows for rows, seconds in walked.items()
              if 3 * BLOCKS * host <= seconds]
    if not hidden:
        assert made.rows == SIZES[-1]
        return
    best = min(walked[rows] / rows ** 2 for rows in hidden)
    assert made.rows == min(rows for rows in hidden if (
        walked[rows] / rows ** 2 <= (1 + NEAR) * best))
    # Beyond the smallest size, no walk takes the device longer than BUDGET_S or
    # 12 times the host's time.
    largest = max(walked)
    assert largest == SIZES[0] or SQUARES * pair * largest ** 2 <= max(
        BUDGET_S, 12 * BLOCKS * host)


def test_a_much_faster_device_gets_the_largest_chunk():
    assert choose(1e-3, lambda rows: 1e-2).rows == SIZES[-1]


def test_a_chunk_with_slow_kernels_is_not_chosen():
    walked = {128: 4.0, 256: 4.0, 512: 8.0, 1024: 32.0}
    assert choose(1e-9, lambda rows: walked[rows] / 400).rows == 512


def test_a_stream_uses_the_chunk_that_it_measured(session, capsys):
    model = tiny(max_position_embeddings=2048)
    stream = sluice.stream(model, session=session, chunk="auto")
    chosen = stream.chunk_choice
    assert stream.chunk == chosen.rows in SIZES
    assert 2 * chosen.host_seconds <= chosen.device_seconds or (
        chosen.rows == SIZES[-1])
    said = capsys.readouterr().err
    assert f"in chunks of {chosen.rows} rows (chosen by measuring: " in said
    assert f"pass chunk={chosen.rows} to repeat this run" in said
    assert stream.stats().host_bytes == stream.stats().blocks == 0
    inputs = batch(1, 300)
    found = run(model, inputs)
    stream.unstream()
    again = sluice.stream(model, session=session, chunk=chosen.rows, quiet=True)
    same = run(model, inputs)
    assert again.chunk_choice is None and found.loss == same.loss
    assert all(torch.equal(same.gradients[n], g)
               for n, g in found.gradients.items())
    again.unstream()


def test_blocks_of_the_models_own_heads_are_measured(session, monkeypatch):
    seen = []
    monkeypatch.setattr(chunk_size, "_walk", lambda arena, heads, device,
                        dtype, rows, chunks, clock: seen.append(
                            (heads, dtype)) or (1e-9 * rows * rows,) * 2)
    sluice.stream(tiny().bfloat16(), session=session, chunk="auto",
                  quiet=True).unstream()
    assert set(seen) == {(Heads(4, 2, 8, 8), torch.bfloat16)}
    seen.clear()
    sluice.stream(tiny(), session=session, chunk="auto", batch=3,
                  quiet=True).unstream()
    assert set(seen) == {(Heads(4, 2, 8, 8, batch=3), torch.float32)}
    seen.clear()
    chunk_size.measured(None, [Heads(4, 2, 16, 16), Heads(4, 2, 16, 8)],
                        torch.device("cpu"), torch.float32)
    assert {heads.value_width for heads, _ in seen} == {8}  # the cheapest heads
    with pytest.raises(ValueError, match="batch = 0: at least one"):
        sluice.stream(tiny(), session=session, chunk="auto", batch=0)


def test_measured_blocks_have_the_shapes_of_a_step(arena, monkeypatch):
    """A walk uses all sequences of a batch at once, as a step does."""
    shapes = set()
    own = chunk_size.Attend.apply
    monkeypatch.setattr(chunk_size.Attend, "apply", lambda question, q, k, v,
                        sinks: shapes.add((q.shape, k.shape, v.shape)) or own(
                            question, q, k, v, sinks))
    assert chunk_size._walk(arena, Heads(4, 2, 8, 16, batch=3), torch.device(
        "cpu"), torch.float32, 16, 2, time.perf_counter).issued > 0
    assert shapes == {((3, 4, 16, 8), (3, 2, 16, 8), (3, 2, 16, 16))}
    assert arena.used_bytes == 0


def test_measuring_custom_layers_needs_a_sample(session):
    model = tiny()
    with pytest.raises(ValueError, match="pass sample="):
        sluice.stream(layers=model.model.layers, attention="sdpa",
                      session=session, chunk="auto")
    with pytest.raises(ValueError, match="chunk = 'best': .* or 'auto'"):
        sluice.stream(model, session=session, chunk="best")


def test_all_ranks_use_the_first_ranks_choice(monkeypatch):
    store = dist.HashStore()
    first, second = ChunkChoice(512, 0.5, 1.5), ChunkChoice(1024, 0.5, 1.25)
    for told, expected in ((first, first), (second, first)):
        # Each process has its own counter.
        monkeypatch.setattr(chunk_size, "_chosen", iter([0]))
        assert agreed(told, Board(store)) == expected
    monkeypatch.undo()
    assert agreed(second, None) == second
