"""`chunk="auto"`: the rule, the measurements, and the report of the choice."""

from __future__ import annotations

import random
import time

import pytest
import torch
import torch.distributed as dist
from models import batch, run, tiny

import sluice
from sluice import chunk_size
from sluice.board import Board
from sluice.chunk_size import (
    CHUNKS,
    HOST_SHARE,
    NEAR,
    SIZES,
    ChunkChoice,
    Heads,
    agreed,
    choose,
)

BLOCKS, SQUARES = CHUNKS * (CHUNKS + 1) / 2, CHUNKS ** 2 / 2


def walk(rows, host, pair, waits):
    """Seconds of a walk where a pair of rows takes the device `pair`."""
    of_host, of_device = BLOCKS * host, SQUARES * pair * rows * rows
    return of_host + of_device if waits else max(of_host, of_device)


@pytest.mark.parametrize("seed", range(60))
def test_the_smallest_allowed_chunk_near_the_fastest_is_chosen(seed):
    chance = random.Random(seed)
    waits, host = chance.random() < 0.5, 10 ** chance.uniform(-5, -2)
    # So that some size of those there are is worth its host time.
    pair = host / chance.choice(SIZES[1:]) ** 2 * chance.uniform(2.1, 50)
    most = chance.choice(SIZES)
    walked = {rows: walk(rows, host, pair, waits)
              for rows in SIZES if rows <= most}
    made = choose(host, walked, waits)
    # Never more than the device's own, of which a part may hide the host's.
    of_device = made.device_seconds / made.rows ** 2
    assert of_device <= pair * (1 + 1e-9)
    if waits:
        assert of_device == pytest.approx(pair)
    pair = of_device
    if made.host_seconds > HOST_SHARE * made.device_seconds:
        assert made.rows == SIZES[-1]  # nothing is allowed
        return

    def of_a_pair(rows):
        return (walked[rows] if rows in walked else
                walk(rows, host, pair, waits)) / rows ** 2

    allowed = [r for r in SIZES if host <= HOST_SHARE * pair * r * r]
    best = min(map(of_a_pair, allowed))
    assert of_a_pair(made.rows) <= NEAR * best * (1 + 1e-9)
    for smaller in allowed:
        if smaller < made.rows:
            assert of_a_pair(smaller) > NEAR * best * (1 - 1e-9)


def test_a_much_faster_device_gets_the_largest_chunk():
    made = choose(1e-3, {128: 1e-2, 256: 1e-2 + 1e-9}, waits=False)
    assert made.rows == SIZES[-1]


def test_kernels_slow_on_few_rows_are_measured_as_such():
    walked = {128: 4.0, 256: 4.0, 512: 8.0, 1024: 32.0}
    assert choose(1e-9, walked, waits=False).rows == 512


def test_a_stream_uses_the_chunk_that_it_measured(session, capsys):
    model = tiny(max_position_embeddings=2048)
    stream = sluice.stream(model, session=session, chunk="auto")
    chosen = stream.chunk_choice
    assert stream.chunk == chosen.rows in SIZES
    assert chosen.host_seconds <= HOST_SHARE * chosen.device_seconds or (
        chosen.rows == SIZES[-1])
    said = capsys.readouterr().err
    assert f"in chunks of {chosen.rows} rows (chosen by measuring: " in said
    assert f"chunk={chosen.rows} makes the same run again" in said
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
    assert {heads.value_width for heads, _ in seen} == {8}  # the cheapest
    with pytest.raises(ValueError, match="batch = 0: at least one"):
        sluice.stream(tiny(), session=session, chunk="auto", batch=0)


def test_measured_blocks_have_the_shapes_of_a_step(arena, monkeypatch):
    """Its sequences are walked at a time, as a step walks them."""
    shapes = set()
    own = chunk_size.Attend.apply
    monkeypatch.setattr(chunk_size.Attend, "apply", lambda question, q, k, v,
                        sinks: shapes.add((q.shape, k.shape, v.shape)) or own(
                            question, q, k, v, sinks))
    assert chunk_size._walk(arena, Heads(4, 2, 8, 16, batch=3), torch.device(
        "cpu"), torch.float32, 16, 2, time.perf_counter).issued > 0
    assert shapes == {((3, 4, 16, 8), (3, 2, 16, 8), (3, 2, 16, 16))}
    assert arena.used_bytes == 0


def test_custom_layers_need_a_sample(session):
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
        # Each process counts by itself.
        monkeypatch.setattr(chunk_size, "_chosen", iter([0]))
        assert agreed(told, Board(store)) == expected
    monkeypatch.undo()
    assert agreed(second, None) == second
