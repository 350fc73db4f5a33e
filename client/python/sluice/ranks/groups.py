"""A process group of ranks that share each sequence: rows, heads, failures.

[Note: dealing]
Every rank is given the same whole rows. In each chunk of the sequence, rank r
of P has the r-th slice (FPDT, section 4.1). So the ranks have even work under a
causal mask, and the slices that the ranks exchange for one chunk add up to
contiguous rows: the chunk. A rank's own rows are its slices one after the
other. Slices of a chunk differ by one row at most, and none is empty: a last
chunk with fewer rows than ranks is merged into the one before it, and a
sequence with fewer rows than ranks is not dealt; each rank runs it whole.

[Note: a failing rank]
A rank that fails alone leaves the others in a collective that it never joins.
So it writes the reason on the job's board, and a rank that waits for long reads
the board and raises `PeerFailed` with that reason. The key on the board
contains the numbers of the group's stream and of its call, equal on all ranks,
so that an error that all ranks raise in one call is not mistaken for one of a
later call. An abandoned collective never ends, so the group is unusable
afterwards, as after a time-out. On a real GPU the GPU waits instead of the
host, and another thread reads the board (`peer_watch`).
"""
from __future__ import annotations

import collections
import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from sluice.base.arguments import invalid
from sluice.base.errors import PeerFailed, Status, Unsupported
from sluice.ranks.board import Board

_made: collections.Counter[str] = collections.Counter()  # `Ranks` by group

LOOK_S = 1.0  # seconds between two reads of the board by a waiting rank
# Tenths of a second that a rank waits, after a collective has failed, for a
# report of the death that caused the failure.
NEWS_TICKS = 20


class Ranks:
    """A process group of more than one rank, as seen by this rank. All ranks
    must call methods documented as collectives in the same order."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        _made[group.group_name] += 1
        # [Note: a failing rank]. `call` counts calls that all ranks entered.
        self._stream, self.call = _made[group.group_name], 0
        self.failed: PeerFailed | None = None  # set once, by `fail`
        self._failing = threading.Lock()
        self._interrupted: int | None = None  # thread in which `fail` raises
        # Whether the PeerWatch learns of deaths on other nodes. If so, only the
        # PeerWatch reads the board.
        self.hears_deaths = False
        self._raised = -1  # last call in which this rank itself failed
        self.within = 0  # number of `telling` contexts that are active
        # (heads of q, heads of k, device) -> heads of k that the ranks need.
        self._needed: dict[tuple[int, int, torch.device], Tensor] = {}

    @staticmethod
    def of(group: dist.ProcessGroup | None, chunk: int) -> Ranks | None:
        """Returns the group's `Ranks`, or None if it has only one rank. Raises
        `Invalid` if a chunk has fewer rows than there are ranks."""
        if group is None or dist.get_world_size(group) == 1:
            return None
        ranks = Ranks(group)
        if chunk < ranks.size:
            raise invalid(f"stream: chunk = {chunk}: at least one row for "
                          f"each of the group's {ranks.size} ranks")
        return ranks

    def slices(self, rows: range) -> list[range]:
        least, more = divmod(len(rows), self.size)
        starts = [rows.start + r * least + min(r, more)
                  for r in range(self.size + 1)]
        return [range(a, b) for a, b in zip(starts, starts[1:])]

    def own(self, chunks: Sequence[range], rank: int | None = None
            ) -> list[range]:
        """Returns this rank's (or another's) slice of each chunk."""
        rank = self.rank if rank is None else rank
        return [self.slices(rows)[rank] for rows in chunks]

    def check_heads(self, name: str, heads: int, kv_heads: int) -> None:
        if heads % self.size or heads % kv_heads:
            raise Unsupported(
                name, f"{heads} heads of attention ({kv_heads} of k and v), "
                f"which {self.size} ranks cannot share evenly", "use a group "
                "whose size divides the number of heads")

    def kv_heads(self, heads: int, kv_heads: int) -> list[int]:
        """Returns the heads of k, v that the ranks need, rank after rank,
        equally many for each; several ranks may get the same. If a rank's heads
        of q share k, v unevenly, it gets one head of k, v per head of q."""
        per_rank, per_kv = heads // self.size, heads // kv_heads
        every = per_kv if per_rank % per_kv == 0 else (
            per_rank if per_kv % per_rank == 0 else 1)
        return [head // per_kv for head in range(0, heads, every)]

    def needed(self, heads: int, kv_heads: int, device: torch.device) -> Tensor:
        """Returns `kv_heads` as an index tensor, copied to `device` once."""
        key = heads, kv_heads, device
        if key not in self._needed:
            self._needed[key] = torch.tensor(self.kv_heads(heads, kv_heads),
                                             device=device)
        return self._needed[key]

    def filled(self, parts: Sequence[Tensor | None], like: Sequence[Tensor]
               ) -> list[Tensor | None]:
        """Returns the gradients `parts` of the parameters `like`, with zeros
        for None where another rank has a gradient (of an expert, say), because
        the ranks must reduce the same tensors. A collective; the host waits if
        this rank lacks a gradient."""
        if not parts:
            return []
        own, device = [p is not None for p in parts], like[0].device
        told = torch.ones(len(own), dtype=torch.uint8, device=device)
        if not all(own):
            told.copy_(torch.tensor(own))
        self.wait(dist.all_reduce(told, dist.ReduceOp.MAX, group=self.group,
                                  async_op=True), device)
        if all(own):
            return list(parts)
        some = told.tolist()
        self.check()
        return [torch.zeros_like(p) if part is None and needed else part
                for part, p, needed in zip(parts, like, some)]

    def sum(self, part: Tensor) -> Tensor:
        """Returns the sum of the ranks' parts on each rank; a collective. Each
        part's gradient is multiplied by the number of ranks, so that a
        parameter's average gradient over all ranks is the whole sequence's."""
        return _Sum.apply(self, part)

    def wait(self, work: dist.Work, device: torch.device) -> None:
        """Waits until a collective of this group is done. Raises `PeerFailed`
        if a rank has reported that it failed. On a GPU the host does not wait;
        later compute is ordered after the collective."""
        if device.type != "cpu":
            self.check()
            work.wait()
            return
        over = threading.Event()
        work.get_future().add_done_callback(lambda _: over.set())
        while not over.wait(LOOK_S):
            self._look()
        try:
            work.wait()
        except RuntimeError:  # the process of a rank may have ended
            self._look()
            for _ in range(NEWS_TICKS if self.hears_deaths else 0):
                time.sleep(0.1)
                self._look()
            raise

    def fail(self, failed: PeerFailed, thread: int | None) -> None:
        """Makes `check` raise `failed`. Also raises it in `thread`, if given,
        unless that thread runs a stream."""
        with self._failing:
            self.failed = failed
            if thread is not None and not self.within:
                self._interrupted = thread
                _raise_in(thread, failed)

    def check(self) -> None:
        """Raises `PeerFailed` if collectives were aborted: results are void."""
        if self.failed is not None:
            self._raise_failed()

    def _raise_failed(self, cause: Exception | None = None) -> NoReturn:
        with self._failing:
            # Autograd's thread may be faster than the interrupted one, which
            # would then be interrupted while it handles the same error.
            thread, self._interrupted = self._interrupted, None
            if thread is not None:
                _raise_in(thread, None)
        assert self.failed is not None
        raise self.failed from cause

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Reports an error raised inside to ranks that wait for this one. If
        collectives were aborted, raises `PeerFailed` instead."""
        self.within += 1
        try:
            yield
            self.check()
        except BaseException as error:
            if self.failed not in (None, error) and (
                    isinstance(error, Exception)):
                self._raise_failed(error)
            self._tell(error)
            raise
        finally:
            self.within -= 1

    def told(self) -> str:
        """Returns a line that says which rank failed in this call and why; ""
        if none did, or if this rank failed too."""
        board = Board.of_job()
        try:
            told = None if board is None or self._raised == self.call else (
                board.read(self._key()))
        except RuntimeError:  # the store is gone
            return ""
        return "" if told is None or told["rank"] == self.rank else (
            f"rank {told['rank']} of the {self.size} that share the sequence "
            f"failed: {told['what']}")

    def _key(self) -> str:
        return f"failed/{self.group.group_name}/{self._stream}/{self.call}"

    def _look(self) -> None:
        self.check()
        told = "" if self.hears_deaths else self.told()
        if told:
            raise PeerFailed(Status.ABORTED, told)

    def _tell(self, error: BaseException) -> None:
        board, self._raised = Board.of_job(), self.call
        if board is None or isinstance(error, PeerFailed):
            return
        what = f"{type(error).__name__}: {error}"
        # Ignore that the store is gone: no rank can be informed then.
        with contextlib.suppress(RuntimeError):
            board.update(self._key(), lambda told: told or {
                "rank": self.rank, "what": what})


def _raise_in(thread: int, error: PeerFailed | None) -> None:
    """Raises `error` in another thread, between two instructions of its Python
    code; if the thread is in a C function, once that has returned. None: takes
    back an error that has not been raised yet."""
    kind = None if error is None else type("PeerFailed", (PeerFailed,), {
        "__init__": lambda self: PeerFailed.__init__(self, *error.args)})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread),
        None if kind is None else ctypes.py_object(kind))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ranks: Ranks, part: Tensor) -> Tensor:
        ctx.size = ranks.size
        total = part.detach().clone()
        ranks.wait(dist.all_reduce(total, group=ranks.group, async_op=True),
                   total.device)
        return total

    @staticmethod
    def backward(ctx, scale: Tensor):
        return None, scale * ctx.size


def indices(rows: Sequence[range], device: torch.device) -> Tensor:
    """Returns the numbers in `rows`, in their order: int64 [all rows]."""
    return torch.cat([torch.arange(r.start, r.stop, device=device)
                      for r in rows])
