"""The ranks of a process group that share each sequence, and what each has.

[Note: dealing]
Every rank is given the same whole rows. In each chunk of the sequence, rank r
of P has the r-th slice (FPDT, section 4.1), so the ranks' work is even under
a causal mask, and what the exchange of one chunk puts together is contiguous:
the chunk. A rank's own rows are its slices one after the other. Slices of a
chunk differ by one row at most, and none is empty: what would be a last chunk
of fewer rows than ranks belongs to the chunk before it, and a sequence of
fewer rows than ranks is not dealt at all; each rank runs it whole.

[Note: a failing rank]
What fails on one rank alone leaves the others in a collective that it never
joins. So it writes on the job's board why, and a rank that waits for long
looks there and raises the same, with the rank's name. What all ranks raise
alike in one call finds no rank waiting, and belongs to that call: the streams of
a group and their calls are counted, the same on all ranks. A collective that was
left is never over; the group is of no use then, as after a time-out. On a real
GPU it is the GPU that waits, and another thread that looks (`peers`).
"""
from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from sluice.base.arguments import invalid
from sluice.base.errors import PeerFailed, Status, Unsupported
from sluice.ranks.board import Board

_made: collections.Counter[str] = collections.Counter()  # `Ranks`, by group

LOOK_S = 1.0  # a collective may take before the board is looked at, and between
# After a lost collective, for the news of the death: of 0.1 s, at most.
NEWS_TICKS = 20


class Ranks:
    """A process group with more than one rank, seen from one of them.

    Every method that says so is a collective: all ranks call it in the same
    order.
    """

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        _made[group.group_name] += 1
        # See [Note: a failing rank].
        # A call counts from when all ranks are in it.
        self._stream, self.call = _made[group.group_name], 0
        self.failed: PeerFailed | None = None  # with a PeerWatch, from then on
        # On other nodes, too: then it is the PeerWatch that looks at the board.
        self.hears_deaths = False
        self._raised = -1  # the last call in which this rank failed itself
        self.within = 0  # what is running of a stream
        # By heads of q, of k and v, and device: the k and v that this rank
        # needs.
        self._needed: dict[tuple[int, int, torch.device], Tensor] = {}

    @staticmethod
    def of(group: dist.ProcessGroup | None, chunk: int) -> Ranks | None:
        """None where nothing is shared; `Invalid` where a chunk has no rows
        for each rank."""
        if group is None or dist.get_world_size(group) == 1:
            return None
        ranks = Ranks(group)
        if chunk < ranks.size:
            raise invalid(f"stream: chunk = {chunk}: at least one row for "
                          f"each of the group's {ranks.size} ranks")
        return ranks

    # --- rows ---------------------------------------------------------------

    def slices(self, rows: range) -> list[range]:
        """The rows of a chunk by rank."""
        least, more = divmod(len(rows), self.size)
        starts = [rows.start + r * least + min(r, more)
                  for r in range(self.size + 1)]
        return [range(a, b) for a, b in zip(starts, starts[1:])]

    def own(self, chunks: Sequence[range], rank: int | None = None
            ) -> list[range]:
        """This rank's (or another's) slice of each chunk."""
        rank = self.rank if rank is None else rank
        return [self.slices(rows)[rank] for rows in chunks]

    # --- heads --------------------------------------------------------------

    def check_heads(self, name: str, heads: int, kv_heads: int) -> None:
        if heads % self.size or heads % kv_heads:
            raise Unsupported(
                name, f"{heads} heads of attention ({kv_heads} of k and v), "
                f"which {self.size} ranks cannot share evenly", "use a group "
                "whose size divides the number of heads")

    def kv_heads(self, heads: int, kv_heads: int) -> list[int]:
        """Which heads of k, v each rank needs, rank after rank; as many for
        each. With fewer of them than ranks one goes to several; where a
        rank's heads share k, v unevenly, it has one of them per head of q."""
        per_rank, per_kv = heads // self.size, heads // kv_heads
        every = per_kv if per_rank % per_kv == 0 else (
            per_rank if per_kv % per_rank == 0 else 1)
        return [head // per_kv for head in range(0, heads, every)]

    def needed(self, heads: int, kv_heads: int, device: torch.device
               ) -> Tensor:
        """`kv_heads` as an index on `device`, to which it is copied once."""
        key = heads, kv_heads, device
        if key not in self._needed:
            self._needed[key] = torch.tensor(self.kv_heads(heads, kv_heads),
                                             device=device)
        return self._needed[key]

    # --- collectives --------------------------------------------------------

    def filled(self, parts: Sequence[Tensor | None], like: Sequence[Tensor]
               ) -> list[Tensor | None]:
        """Gradients `parts` of the parameters `like`, zero where only other
        ranks have one (of an expert that no row of this rank took): what
        reduces them over ranks needs the same ones on each. A collective, but
        only a rank that lacks one waits for the answer."""
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
        """The sum of the ranks' parts, on each; a collective. Its gradient to
        each part is multiplied by the number of ranks, so that an average of
        parameters' gradients over all ranks is the whole sequence's."""
        return _Sum.apply(self, part)

    # --- what fails ----------------------------------------------------------

    def wait(self, work: dist.Work, device: torch.device) -> None:
        """Until a collective of this group is done; raises `PeerFailed` where
        a rank has told that it will never take part.

        On a device with streams it is only ordered before what comes after.
        """
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
        except RuntimeError:  # the rank's process may have ended since
            self._look()
            for _ in range(NEWS_TICKS if self.hears_deaths else 0):
                time.sleep(0.1)
                self._look()
            raise

    def check(self) -> None:
        """Raises `PeerFailed` where collectives were aborted: what they would
        have given is void."""
        if self.failed is not None:
            raise self.failed

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """What is raised within is told to ranks that wait for this one."""
        self.within += 1
        try:
            yield
            self.check()
        except BaseException as error:
            if self.failed not in (None, error) and (
                    isinstance(error, Exception)):
                raise self.failed from error
            self._tell(error)
            raise
        finally:
            self.within -= 1

    def told(self) -> str:
        """Which rank failed in this call, and with what; "": none, or this
        one too."""
        board = Board.of_job()
        try:
            told = None if board is None or self._raised == self.call else (
                board.read(self._key()))
        except RuntimeError:  # no store any more: nothing can be told
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
        # Where there is no store any more no rank can be told.
        with contextlib.suppress(RuntimeError):
            board.update(self._key(), lambda told: told or {
                "rank": self.rank, "what": what})


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
    """int64 [all rows]: the numbers in `rows`, in their order."""
    return torch.cat([torch.arange(r.start, r.stop, device=device)
                      for r in rows])
