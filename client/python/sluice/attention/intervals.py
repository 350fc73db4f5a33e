"""Masks in which each row sees one interval of keys, and their pieces."""
from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sluice.base.errors import Unsupported

# With fewer rows per document, one call with a mask is faster than many calls.
LEAST_ROWS = 16


class Whole(enum.Enum):
    """Masks of a rectangle that need no tensor."""

    FULL = 0  # every row sees every key
    CAUSAL = 1  # square, on the diagonal: row i sees keys 0 .. i


class Window(NamedTuple):
    """Sliding window: how many keys each row of a rectangle sees left and right
    (None: all) of its own key. The last row's own key is the last key."""

    left: int
    right: int | None

    def reach(self, rows: range, keys: range, own: int) -> range:
        """Returns the range of `keys` that `rows` see, at least one key. `own`
        is the number of row 0's own key."""
        begin = min(max(rows.start + own - self.left, 0), keys.stop - 1)
        end = keys.stop if self.right is None else min(
            rows.stop + own + self.right, keys.stop)
        return range(begin, max(end, begin + 1))

    def seen(self, rows: range, keys: range, own: int, device: torch.device
             ) -> Tensor:
        """Returns a bool mask [1, 1, rows, keys], True where a key is seen."""
        own += rows.start - keys.start
        seen = torch.ones(1, 1, len(rows), len(keys), dtype=torch.bool,
                          device=device).triu(own - self.left)
        return seen if self.right is None else seen.tril(own + self.right)


class Between(NamedTuple):
    """The first and last key that each row of a block sees: [B, c], or [1, c]
    if all batch rows are the same. `begin` is the block's first key.
    (A mask tensor of all rows and keys would be as large as the scores.)"""

    first: Tensor
    last: Tensor
    begin: int

    def seen(self, batch: slice, rows: range, keys: range) -> Tensor:
        """Returns a bool mask [B or 1, 1, rows, keys]."""
        key = torch.arange(self.begin + keys.start, self.begin + keys.stop,
                           device=self.first.device)
        first, last = (x[batch if len(x) > 1 else slice(None),
                         rows.start:rows.stop, None]
                       for x in (self.first, self.last))
        return (key >= first).logical_and_(key <= last)[:, None]


class Piece(NamedTuple):
    """A rectangle of a block and its mask; slices count within the block."""

    batch: slice
    rows: slice
    keys: slice
    mask: Whole | Window | Between

    @property
    def is_whole_block(self) -> bool:
        return self.batch == self.rows == self.keys == slice(None)


@dataclass(eq=False)
class Intervals:
    """A mask: row q of batch row b sees the keys first[b, q] .. last[b, q].

    `first` and `last` are int64 [B, S], or [1, S] if all batch rows are the
    same, and are never written. Rows of padding may see nothing: their
    interval is S .. -1, which lies in no block. `widest` is the largest number
    of tokens from a row's first key to the row itself, both counted.
    """

    first: Tensor
    last: Tensor
    widest: int
    blind: Tensor | None = None  # bool [B or 1, S]: rows that see nothing

    def __post_init__(self) -> None:
        # Caches: all layers of a step have the same blocks.
        self._found: dict[tuple[range, range], list[Piece]] = {}
        # By (id of a list of chunks, index in it). Held lists keep their ids.
        self._seen_of: dict[tuple[int, int], tuple[list[range], list]] = {}
        self._within: dict[int, bool] = {}

    @staticmethod
    def causal(length: int, device: torch.device) -> Intervals:
        rows = torch.arange(length, device=device)[None]
        return Intervals(rows.new_zeros(1, 1).expand_as(rows), rows, length)

    def within(self, documents: Tensor) -> bool:
        """Returns whether each row's first key is documents[b, q] or later."""
        known = self._within.get(id(documents))
        if known is None:
            known = bool((self.first >= documents).all())
            self._within[id(documents)] = known
        return known

    @staticmethod
    def of(first: Tensor, last: Tensor, padding: Tensor | None) -> Intervals:
        """Returns the intervals first .. last, [B, S]. Rows with first > last
        see nothing; raises `Unsupported` if such a row is not marked in
        `padding`, bool [B or 1, S]."""
        length, blind = first.shape[1], first > last
        if not bool(blind.any()):
            blind = None
        else:
            if padding is None or bool((blind & ~padding).any()):
                raise Unsupported(
                    "attention mask", "rows that attend to no key and are no "
                    "padding by a 2-D attention_mask",
                    "leave such rows out of the batch")
            first = first.masked_fill(blind, length)
            last = last.masked_fill(blind, -1)
        if len(first) > 1 and bool((first == first[:1]).all()) and bool(
                (last == last[:1]).all()):
            first, last = first[:1], last[:1]
        widest = int((torch.arange(length, device=first.device) - first
                      ).max()) + 1
        if bool((first == 0).all()):  # the usual case: needs no memory
            first = first.new_zeros(1, 1).expand_as(first)
        return Intervals(first, last.contiguous(), widest, blind)

    def both(self, other: Intervals, padding: Tensor | None) -> Intervals:
        return Intervals.of(torch.maximum(self.first, other.first),
                            torch.minimum(self.last, other.last), padding)

    def seen(self, chunks: list[range], m: int
             ) -> list[tuple[int, list[Piece]]]:
        """Returns the indices of the chunks that chunk m sees, with pieces."""
        _, found = self._seen_of.get((id(chunks), m), (None, None))
        if found is None:
            found = [(i, self.pieces(chunks[m], chunks[i]))
                     for i in range(m + 1)]
            found = [(i, pieces) for i, pieces in found if pieces]
            self._seen_of[id(chunks), m] = chunks, found
        return found

    def pieces(self, rows: range, keys: range) -> list[Piece]:
        """Returns the rectangles of `keys` that `rows` see, if any.

        Off the diagonal a document's rows see one range of the keys; on the
        diagonal each document has a causal square. A window is the rectangle of
        the keys that it reaches. Other masks (documents in windows) are one
        piece with an interval for each row.
        """
        if (rows, keys) not in self._found:
            self._found[rows, keys] = self._cut(rows, keys)
        return self._found[rows, keys]

    @functools.cached_property
    def is_causal(self) -> bool:
        """Whether each row sees itself and all rows before it, and no other."""
        rows = torch.arange(self.last.shape[1], device=self.last.device)
        return bool(((self.first == 0) & (self.last == rows)).all())

    def _cut(self, rows: range, keys: range) -> list[Piece]:
        if self.is_causal and (rows == keys or keys.stop <= rows.start):
            return [_whole(Whole.CAUSAL if rows == keys else Whole.FULL)]
        first = self.first[:, rows.start:rows.stop]
        last = self.last[:, rows.start:rows.stop]
        if not bool(((first < keys.stop) & (last >= keys.start)).any()):
            return []
        if len(first) == 1:
            return _of_row(slice(None), first[0], last[0], rows, keys)
        return [piece for b in range(len(first)) for piece in _of_row(
            slice(b, b + 1), first[b], last[b], rows, keys)]


def _whole(mask: Whole) -> Piece:
    return Piece(slice(None), slice(None), slice(None), mask)


def _of_row(batch: slice, first: Tensor, last: Tensor, rows: range,
            keys: range) -> list[Piece]:
    """Returns the pieces of one batch row; first, last [len(rows)]. Rows with
    an interval that begins behind the keys get no piece."""
    starts, counts = (t.tolist() for t in torch.unique_consecutive(
        first.clamp(keys.start, keys.stop), return_counts=True))
    if len(counts) * LEAST_ROWS > len(rows) + LEAST_ROWS:
        return [_masked(batch, first, last, rows, keys)]
    own = torch.arange(rows.start, rows.stop, device=last.device)
    diagonal = rows == keys
    whole = last == own if diagonal else last >= keys.stop - 1
    if not bool((whole | (last < first)).all()):
        return [_masked(batch, first, last, rows, keys)]
    pieces, at = [], 0
    for start, count in zip(starts, counts):
        here, begin = slice(at, at + count), start - keys.start
        before = at if diagonal else len(keys)
        if begin < before:
            pieces.append(Piece(batch, here, slice(begin, before), Whole.FULL))
        if diagonal and begin < len(keys):
            pieces.append(Piece(batch, here, here, Whole.CAUSAL))
        at += count
    return [_widest(piece, len(rows), len(keys)) for piece in pieces]


def _masked(batch: slice, first: Tensor, last: Tensor, rows: range,
            keys: range) -> Piece:
    """Returns one piece for intervals that form no rectangles: a window if they
    form one, else a piece with an interval per row."""
    own = torch.arange(rows.start, rows.stop, device=last.device)
    width = int((own - first).max()) + 1
    diagonal = rows == keys
    if not (diagonal or keys.stop <= rows.start) or not bool(
            ((first == (own - width + 1).clamp(min=0)) & (last == own)).all()):
        return Piece(batch, slice(None), slice(None), Between(
            first[None], last[None], keys.start))
    # Leaves out keys before the first row's first key, and rows without keys.
    apart = rows.start - keys.start
    begin = max(0, apart - width + 1)
    end = min(len(rows), len(keys) + width - 1 - apart)
    left = width - 1 - apart + len(keys) - end
    return _widest(Piece(
        batch, slice(0, end), slice(begin, len(keys)),
        Window(left, 0 if diagonal else None)), len(rows), len(keys))


def _widest(piece: Piece, rows: int, keys: int) -> Piece:
    return piece._replace(
        rows=slice(None) if piece.rows == slice(0, rows) else piece.rows,
        keys=slice(None) if piece.keys == slice(0, keys) else piece.keys)
