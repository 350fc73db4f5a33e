"""Finds the interval of keys that each row attends to, from the model's masks.

[Note: interval masks]
With causal masks, sliding windows, chunked attention, packed documents, right
padding and all their intersections, row q of batch row b attends to one
interval of keys, first[b, q] .. last[b, q], with last[b, q] <= q. So masks
need not be recognised by name. A binary search over all rows at once evaluates
the model's mask function to find where each row's interval begins and ends;
then random places are evaluated to check that nothing outside is seen and
nothing inside is missing. A mask that fails (a prefix that sees all of itself,
image tokens, global tokens) is refused.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from sluice.attention.intervals import Intervals
from sluice.base.errors import Unsupported

# Number of random keys checked anywhere, and again near the row, for each row.
SAMPLES = 16
EVERYWHERE = 1 << 18  # a mask of at most so many places is checked at each
# A bias of at most this masks a key: its exponential is 0 in fp32.
MASKED = -1e4
ROWS = 8192  # rows evaluated at a time, to limit memory


def find(function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
         batch: int, length: int, heads: int, device: torch.device,
         padding: Tensor | None = None) -> Intervals:
    """Returns the intervals of a mask function of transformers, which takes
    index tensors (batch, head, query, key) that broadcast. `padding`, bool
    [batch or 1, length]: rows that may see nothing. Raises `Unsupported` if the
    mask is not made of intervals that end at or before the row itself, or if a
    row that is no padding sees no key."""
    ask = _Asker(function, batch, heads, device)
    row = torch.arange(length, device=device).expand(batch, length)
    # A row that does not see itself is padding; its interval, if any, ends at
    # the last row before it that sees itself.
    seed = torch.where(ask(row, row), row, -1).cummax(dim=1).values
    few = batch * length * length * heads <= EVERYWHERE
    edges = [_edges(ask, row[:, a:a + ROWS], seed[:, a:a + ROWS], length, few)
             for a in range(0, length, ROWS)]
    first, last = (torch.cat(parts, 1) for parts in zip(*edges))
    return Intervals.of(first, last, padding)


def is_pure(function: Callable) -> bool:
    """Returns whether the function depends on its arguments and constants
    alone, so that its result is the same in each step."""
    code = getattr(function, "__code__", None)
    return code is not None and not (
        code.co_names or code.co_freevars or function.__defaults__
        or function.__kwdefaults__)


def _edges(ask: _Asker, row: Tensor, seed: Tensor, length: int, few: bool
           ) -> tuple[Tensor, Tensor]:
    """Returns (first, last) of rows [B, n], which see key `seed` or no key."""
    sees = (seed >= 0) & ask(seed.clamp(min=0), row)
    first = _edge(ask, row, low=torch.full_like(row, -1), high=seed)
    last = _edge(ask, row, low=row + 1, high=seed)
    first = torch.where(sees, first, length)
    last = torch.where(sees, last, -1)
    _verify(ask, row, first, last, length, few)
    return first, last


def dense(mask: Tensor, padding: Tensor | None = None) -> Intervals:
    """Returns the intervals of a mask tensor [B, heads or 1, S, S]: bool
    (True: seen), or added to the scores (0: seen; at most `MASKED`: not seen).
    Raises `Unsupported` as `find` does, and for a bias."""
    is_bool = mask.dtype == torch.bool
    seen = mask if is_bool else mask == 0
    if not is_bool and not bool((seen | (mask <= MASKED)).all()):
        raise Unsupported("attention mask", "a bias that is added to the "
                          "scores")
    if not bool((seen == seen[:, :1]).all()):
        raise _not_intervals()
    seen = seen[:, 0]
    length = seen.shape[1]
    places = torch.arange(length, device=mask.device)
    some = seen.any(-1)
    first = torch.where(some, seen.int().argmax(-1), length)
    last = torch.where(some, length - 1 - seen.flip(-1).int().argmax(-1), -1)
    inside = (places >= first[..., None]) & (places <= last[..., None])
    if not bool((seen == inside).all()) or bool((last > places).any()):
        raise _not_intervals()
    return Intervals.of(first, last, padding)


def _not_intervals() -> Unsupported:
    return Unsupported(
        "attention mask", "a mask that is not, for each row, one interval of "
        "keys that ends at or before the row, the same for all heads",
        "use causal, sliding-window, chunked or document masks, or do not "
        "stream this model")


class _Asker:
    """Evaluates a mask function for keys [B, n] or [B, n, m] of rows [B, n]."""

    def __init__(self, function, batch, heads, device):
        self.function = function
        self.batch = torch.arange(batch, device=device)
        self.heads = heads
        self.device = device

    def __call__(self, keys: Tensor, row: Tensor, head: int = 0) -> Tensor:
        flat = keys if keys.dim() == 3 else keys[..., None]
        shape = flat.shape
        try:
            seen = self.function(
                self.batch[:, None, None].expand(shape),
                torch.full((), head, device=self.device).expand(shape),
                row[..., None].expand(shape), flat)
        except Exception as error:  # the user's function may raise anything
            raise Unsupported(
                "attention mask", f"a mask function that cannot be asked for "
                f"single places ({type(error).__name__}: {error})",
                "write it on index tensors (batch, head, query, key) that "
                "broadcast") from error
        return seen.to(torch.bool).expand(shape).reshape(keys.shape)


def _edge(ask: _Asker, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Returns, per row, by bisection, the last key that is seen on the way
    from `high`, which is seen, to `low`, which counts as not seen."""
    unseen, seen = low.clone(), high.clone()
    while bool(((seen - unseen).abs() > 1).any()):
        middle = torch.div(seen + unseen, 2, rounding_mode="floor")
        # For neighbours the middle is one of the two.
        open_ = (seen - unseen).abs() > 1
        hit = ask(middle.clamp(min=0), row)
        seen = torch.where(open_ & hit, middle, seen)
        unseen = torch.where(open_ & ~hit, middle, unseen)
    return seen


def _verify(ask: _Asker, row: Tensor, first: Tensor, last: Tensor,
            length: int, few: bool) -> None:
    """Raises `Unsupported` if the mask differs from the intervals. Checks all
    places if they are `few`, as in the probe of a model; else, for the first
    and last head, the key after each row, and random keys (seeded)."""
    shape = row.shape
    heads: Iterable[int] = range(ask.heads)
    if few:
        keys = torch.arange(length, device=row.device).expand(*shape, length)
    else:
        heads = {0, ask.heads - 1}
        generator = torch.Generator().manual_seed(length + int(row[0, 0]))
        anywhere = torch.randint(length, (*shape, SAMPLES),
                                 generator=generator).to(row.device)
        # Far keys rarely show a wrong interval, so half of the keys are near.
        near = (row[..., None] + anywhere % 64 - 32).clamp(0, length - 1)
        after = (row[..., None] + 1).clamp(max=length - 1)
        keys = torch.cat([anywhere, near, after], dim=-1)
    expected = (keys >= first[..., None]) & (keys <= last[..., None])
    for head in heads:
        if not bool((ask(keys, row, head) == expected).all()):
            raise _not_intervals()
