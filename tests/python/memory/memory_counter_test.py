"""`./dev bench length` counts all CPU memory of torch, and no memory leased
from the daemon."""

from __future__ import annotations

import sys

import pytest
import torch
from support import ROOT

from sluice.memory.arena import HostArena
from sluice.node.hidden_rows import stand_in

sys.path.insert(0, str(ROOT / "tests" / "bench"))
import counting


@pytest.fixture(scope="module")
def counter():
    return counting.Counter()


def test_tensors_count_while_their_memory_lives(counter):
    before = counter.used_bytes
    one = torch.empty(1000)
    view = one[10:]
    assert counter.used_bytes - before == 4000
    del one
    assert counter.used_bytes - before == 4000
    del view
    assert counter.used_bytes == before


def test_the_peak_is_the_most_at_once(counter):
    before = counter.used_bytes
    counter.reset_peak()
    for _ in range(3):
        both = torch.zeros(500), torch.zeros(500)
        del both
    assert counter.peak_bytes - before == 4000
    counter.reset_peak()
    assert counter.peak_bytes == before


def test_temporary_memory_of_an_operation_counts(counter):
    x = torch.randn(64, 64)
    before = counter.used_bytes
    counter.reset_peak()
    x.sort(dim=0, descending=True)  # allocates copies to sort in
    assert counter.peak_bytes - before > 64 * 64 * (4 + 8)
    assert counter.used_bytes == before


def test_a_stand_in_is_one_element(counter):
    before = counter.used_bytes
    made = stand_in((2, 1000, 128), torch.float32, torch.device("cpu"))
    assert counter.used_bytes - before == 4 and made.isnan().all()


def test_leased_memory_does_not_count(session, counter):
    with HostArena(session) as arena:
        before = counter.used_bytes
        kept = [arena.put(torch.ones(1 << 20)) for _ in range(8)]
        arena.drain()
        assert arena.used_bytes == 8 << 22
        assert counter.used_bytes == before
        back = arena.get(kept[0], "cpu")
        assert counter.used_bytes - before == back.nbytes
