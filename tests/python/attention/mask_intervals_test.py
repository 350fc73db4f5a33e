"""Tests the intervals of keys that are found from mask functions and from dense
masks."""

from __future__ import annotations

import pytest
import torch
from models import assert_same, batch, run, tiny, unstreamed
from transformers import masking_utils as hf

import sluice
from sluice import Unsupported
from sluice.attention import intervals, masks
from sluice.attention.intervals import (
    LEAST_ROWS,
    Between,
    Intervals,
    Whole,
    Window,
)
from sluice.attention.masks import dense, find, is_pure
from sluice.node.step import chunks_of

CPU = torch.device("cpu")


def documents(*rows):
    ids = torch.tensor(rows)
    return hf.and_masks(hf.causal_mask_function,
                        hf.packed_sequence_mask_function(ids))


def padded(*lengths, length, left=0, function=hf.causal_mask_function):
    rows = torch.arange(length)[None]
    mask = (rows >= left) & (rows < torch.tensor(lengths)[:, None])
    return hf.and_masks(function, hf.padding_mask_function(mask))


MASKS = {
    "causal": (hf.causal_mask_function, 1, 37),
    "one row": (hf.causal_mask_function, 2, 1),
    "window": (hf.sliding_window_causal_mask_function(7), 1, 37),
    "window of one": (hf.sliding_window_causal_mask_function(1), 1, 37),
    "window wider than the mask": (
        hf.sliding_window_causal_mask_function(100), 1, 37),
    "chunked": (hf.chunked_causal_mask_function(
        8, torch.zeros(1, dtype=torch.long)), 1, 37),
    "documents": (documents([0] * 5 + [1] * 20 + [2] * 12), 1, 37),
    "documents that differ per batch row": (documents(
        [0] * 5 + [1] * 20 + [2] * 12, [0] * 36 + [1]), 2, 37),
    "documents in a window": (hf.and_masks(
        documents([0] * 5 + [1] * 32),
        hf.sliding_window_overlay(6)), 1, 37),
    "right padding": (padded(37, 20, length=37), 2, 37),
    "left padding": (padded(37, 37, length=37, left=torch.tensor(
        [[0], [21]])), 2, 37),
    "equal left padding": (padded(37, length=37, left=9), 1, 37),
    "padding at both ends of a window": (padded(
        20, 37, length=37, left=9, function=(
            hf.sliding_window_causal_mask_function(7))), 2, 37),
    "padding before documents": (padded(
        37, 30, length=37, left=torch.tensor([[6], [17]]), function=documents(
            [0] * 5 + [1] * 20 + [2] * 12, [0] * 20 + [1] * 17)), 2, 37),
    "padding alone": (padded(0, 37, length=37), 2, 37),
}


def anywhere(length):
    """Returns a `padding` for find() that lets every row see nothing."""
    return torch.ones(1, length, dtype=torch.bool)


def written_out(function, batch, length):
    b = torch.arange(batch)[:, None, None]
    q = torch.arange(length)[None, :, None]
    k = torch.arange(length)[None, None, :]
    return function(b, torch.zeros_like(b), q, k).expand(batch, length, length)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("chunk", [1, 4, 8, 37])
@pytest.mark.parametrize("least", [1, LEAST_ROWS])
def test_pieces_show_what_the_mask_shows(monkeypatch, name, chunk, least):
    monkeypatch.setattr(intervals, "LEAST_ROWS", least)
    function, batch, length = MASKS[name]
    expected = written_out(function, batch, length)
    found = find(function, batch, length, 2, CPU, anywhere(length))
    chunks = chunks_of(length, chunk)
    for rows in chunks:
        for keys in chunks[:chunks.index(rows) + 1]:
            wanted = expected[:, rows.start:rows.stop, keys.start:keys.stop]
            times = torch.zeros_like(wanted, dtype=torch.long)
            for b, r, c, mask in found.pieces(rows, keys):
                place = times[b, r, c]
                if mask is Whole.FULL:
                    place += 1
                elif mask is Whole.CAUSAL:
                    assert place.shape[1] == place.shape[2]
                    place += torch.ones_like(place).tril()
                elif isinstance(mask, Window):
                    place += through(mask, *place.shape[1:])
                else:
                    place += mask.seen(slice(None), range(place.shape[1]),
                                       range(place.shape[2]))[:, 0]
            # The pieces cover each visible pair once, and no other pair.
            assert torch.equal(times, wanted.long())


def through(window, rows, keys):
    """Returns the pairs that a window shows in a block, [1, rows, keys]."""
    return window.seen(range(rows), range(keys), keys - rows, CPU)[:, 0]


@pytest.mark.parametrize("rows, keys", [(7, 7), (5, 9), (9, 4), (1, 1)])
@pytest.mark.parametrize("left, right", [(0, 0), (2, 0), (3, None), (9, 1)])
def test_a_part_of_a_window_matches_the_whole_window(rows, keys, left, right):
    window, own = Window(left, right), keys - rows
    whole = through(window, rows, keys)[0]
    for a in range(rows):
        for b in range(a + 1, rows + 1):
            reached = window.reach(range(a, b), range(keys), own)
            part = window.seen(range(a, b), reached, own, CPU)[0, 0]
            assert len(reached) and torch.equal(
                part, whole[a:b, reached.start:reached.stop])
            assert whole[a:b].sum() == part.sum()


def pieces(function, length, rows, keys):
    return [p.mask for p in find(function, 1, length, 1, CPU).pieces(
        rows, keys)]


def test_full_causal_and_empty_blocks_need_no_tensor():
    causal = hf.causal_mask_function
    assert pieces(causal, 64, range(48, 64), range(16)) == [Whole.FULL]
    assert pieces(causal, 64, range(48, 64), range(48, 64)) == [Whole.CAUSAL]
    window = hf.sliding_window_causal_mask_function(8)
    assert pieces(window, 64, range(48, 64), range(16)) == []


@pytest.mark.parametrize("width", [1, 3, 16, 17, 24, 40, 63])
def test_a_window_needs_no_intervals_and_has_no_row_without_keys(width):
    found = find(hf.sliding_window_causal_mask_function(width), 1, 80, 1, CPU)
    chunks = chunks_of(80, 16)
    for m, rows in enumerate(chunks):
        for keys in chunks[:m + 1]:
            for piece in found.pieces(rows, keys):
                assert not isinstance(piece.mask, Between)
                if isinstance(piece.mask, Window):
                    assert piece.mask.left >= 0
                    seen = through(piece.mask, len(range(16)[piece.rows]),
                                   len(range(16)[piece.keys]))
                    assert seen.any(-1).all() and seen.any(-2).all()


def test_documents_in_a_window_are_an_interval_for_each_row():
    both = hf.and_masks(documents([0] * 30 + [1] * 50),
                        hf.sliding_window_causal_mask_function(6))
    assert any(isinstance(mask, Between) for mask in pieces(
        both, 80, range(16, 32), range(16, 32)))


def test_documents_need_no_tensor():
    packed = documents([0] * 30 + [1] * 50 + [2] * 48)
    assert pieces(packed, 128, range(64, 128), range(64, 128)) == [
        Whole.CAUSAL, Whole.CAUSAL]
    assert pieces(packed, 128, range(64, 128), range(64)) == [Whole.FULL]


def test_equal_batch_rows_are_stored_once():
    same = find(documents([0] * 9 + [1] * 7, [0] * 9 + [1] * 7), 2, 16, 1, CPU)
    assert same.first.shape == (1, 16)


@pytest.mark.parametrize("function", [
    hf.or_masks(hf.causal_mask_function,
                lambda b, h, q, k: (q < 10) & (k < 10)),
    hf.bidirectional_mask_function,
    lambda b, h, q, k: (k <= q) & ((k >= q - 4) | (k < 2)),
    lambda b, h, q, k: (k <= q) & ((h == 0) | (k >= q - 4)),
    lambda b, h, q, k: (k <= q) & (k % 2 == q % 2),
], ids=["prefix", "both directions", "global tokens", "per head", "strided"])
def test_a_mask_without_one_interval_per_row_is_refused(function):
    with pytest.raises(Unsupported, match="attention mask.*interval"):
        find(function, 1, 64, heads=2, device=CPU)


def test_a_future_key_in_a_large_mask_is_refused():
    """The mask is too large for a check of every pair."""
    length = 600
    assert length ** 2 > masks.EVERYWHERE
    with pytest.raises(Unsupported, match="attention mask.*interval"):
        find(lambda b, h, q, k: (k <= q) | (
            (q == length - 3) & (k == length - 1)), 1, length, 1, CPU)


def test_only_rows_of_padding_may_see_no_key():
    left = padded(20, 20, length=20, left=torch.tensor([[0], [5]]))
    padding = torch.arange(20) < torch.tensor([[0], [5]])
    found = find(left, 2, 20, 1, CPU, padding)
    assert torch.equal(found.blind, padding)
    for known in (None, padding & (torch.arange(20) > 0)):
        with pytest.raises(Unsupported, match="no key and are no padding"):
            find(left, 2, 20, 1, CPU, known)


def test_combined_masks_may_hide_all_keys_from_padding():
    length, few = 20, torch.arange(20)[None] < 4
    window = find(hf.sliding_window_causal_mask_function(3), 1, length, 1, CPU)
    late = find(padded(20, length=20, left=4), 1, length, 1, CPU, few)
    both = window.both(late, few)
    assert torch.equal(both.blind, few) and both.widest == 3
    with pytest.raises(Unsupported, match="no key"):
        window.both(late, None)


def test_a_function_that_cannot_be_evaluated_is_refused():
    def branching(b, h, q, k):
        return q >= k if q > 3 else k == 0
    with pytest.raises(Unsupported, match="cannot be asked"):
        find(branching, 1, 20, 1, CPU)


def test_widest_is_the_longest_reach():
    assert find(hf.sliding_window_causal_mask_function(7), 1, 37, 1,
                CPU).widest == 7
    assert Intervals.causal(37, CPU).widest == 37


@pytest.mark.parametrize("name", MASKS)
def test_a_dense_mask_gives_the_intervals_of_its_function(name):
    function, batch, length = MASKS[name]
    asked = find(function, batch, length, 2, CPU, anywhere(length))
    seen = function(torch.arange(batch)[:, None, None, None],
                    torch.zeros(1, dtype=torch.long),
                    torch.arange(length)[:, None], torch.arange(length))
    seen = seen.expand(batch, 1, length, length)
    for mask in (seen, torch.where(seen, 0.0, -1e9)):
        read = dense(mask, anywhere(length))
        assert torch.equal(*torch.broadcast_tensors(read.first, asked.first))
        assert torch.equal(*torch.broadcast_tensors(read.last, asked.last))
        assert read.widest == asked.widest


@pytest.mark.parametrize("spoil, word", [
    (lambda m: m.__setitem__((0, slice(None), 3, 1), -0.5), "a bias"),
    (lambda m: m.__setitem__((0, slice(None), 9, 4), -1e9), "one interval"),
    (lambda m: m.__setitem__((0, slice(None), 3, 5), 0.0), "one interval"),
    (lambda m: m.__setitem__((0, slice(None), 3), -1e9), "no key"),
    (lambda m: m.__setitem__((0, 1, 9, 0), -1e9), "the same for all heads")])
def test_an_invalid_dense_mask_is_refused(spoil, word):
    mask = torch.full((1, 2, 12, 12), -1e9).triu(1)
    spoil(mask)
    with pytest.raises(Unsupported, match=word):
        dense(mask)


WIDTH = 7


def test_functions_of_their_arguments_alone_are_pure():
    def narrow(batch, head, query, key):
        return (key <= query) & (query - key < WIDTH)

    def default(batch, head, query, key, width=[7]):  # noqa: B006
        return (key <= query) & (query - key < width[0])

    assert is_pure(hf.causal_mask_function)
    assert is_pure(lambda batch, head, query, key: key <= query)
    for other in (narrow, default, documents([0] * 37),
                  hf.sliding_window_overlay(7)):
        assert not is_pure(other)


@pytest.mark.parametrize("kind,changes,asked", [
    ("llama", {}, [75, 80]),
    ("mistral", {"sliding_window": 20}, [75] * 3 + [80])])
def test_a_pure_mask_function_is_evaluated_once_per_length(
        session, monkeypatch, kind, changes, asked):
    model, lengths = tiny(kind, **changes), []
    expected = unstreamed(model, batch())
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    monkeypatch.setattr(masks, "find", lambda function, batch, length, *rest: (
        lengths.append(length) or find(function, batch, length, *rest)))
    for _ in range(3):
        assert_same(run(model, batch()), expected)
    run(model, batch(length=80))
    stream.unstream()
    assert lengths == asked
