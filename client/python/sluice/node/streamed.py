"""A model's stream, which `sluice.stream` returns: creates each step, and holds
host memory."""
from __future__ import annotations

import contextlib
import math
import sys
import threading
import warnings
from collections.abc import (
    Hashable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from sluice.attention.gpu_blocks import Kernel
from sluice.base import swapped
from sluice.base.arguments import invalid, need, takes
from sluice.base.model_protocols import Engaging, Patched, WholeKind
from sluice.memory.arena import HostArena, ProcessMemory
from sluice.native.session import Session
from sluice.node.calls import Call
from sluice.node.checked_chunks import Checks, StepChecks
from sluice.node.plain_layers import Forward, Room
from sluice.node.rows import ROWS
from sluice.node.settings import HEAD, Fields, rows_at_first
from sluice.node.skipped_products import Spared
from sluice.node.step import Step, chunks_of
from sluice.plan import chunk_size
from sluice.plan.chunk_size import ChunkChoice
from sluice.plan.planned import Planning
from sluice.plan.policy import Policy
from sluice.plan.step_costs import Measured
from sluice.ranks import agreement, progress
from sluice.ranks.board import Board
from sluice.ranks.groups import Ranks, indices
from sluice.ranks.peer_watch import PeerWatch
from sluice.ranks.shards import SHARDED, Shard, shard

# Counters at 0: blocks of attention, steps, and the blocks' kernels.
_NOTHING: tuple[int, int, frozenset[str]] = 0, 0, frozenset()


@dataclass(frozen=True)
class Stats:
    """Memory and work of a stream. Bytes are in host memory unless stated."""

    host_bytes: int  # held now
    host_peak_bytes: int  # since stream() or reset_stats()
    host_leased_bytes: int
    blocks: int  # blocks of attention run forward
    steps: int  # forwards of the decoder that were streamed
    # Kernels that computed those blocks: "flash on the CPU", "whole scores", or
    # a CUDA kernel by its name in stream().
    kernels: tuple[str, ...] = ()
    plain_layers: int = 0  # layers that ran plain in the latest forward
    plain_bytes: int = 0  # device bytes that plain runs keep until backward


class Stream:
    """A streamed model's host memory, settings and state; `sluice.stream`
    returns it. `unstream()` ends it, and restores the model.

    Thread safety: threads that run the model take turns.
    """

    def __init__(self, session: Session, how: Fields, policy: Policy,
                 ranks: Ranks | None, arena: HostArena | None = None):
        self.session, self._owns_session = session, how.session is None
        self.arena = arena or HostArena(session)
        self.chunk, self.min_tokens = rows_at_first(how.chunk), how.min_tokens
        self.checks = Checks(how.check)
        self.hidden = how.hidden
        # "auto" in probes: they may run in fp32, which some kernels refuse.
        self.kernel: Kernel = "auto"
        self.rerun = how.rerun  # fraction of each sequence that runs again
        self.in_host = False  # hidden states are in the host; false in a probe
        self.policy = policy
        self.planning: Planning | None = None
        self.rows = {**ROWS, **(how.rows or {})}
        self.ranks = ranks  # the ranks that share each sequence
        self.peers: PeerWatch | None = None  # see PeerWatch.of
        self.turn = threading.RLock()  # threads run the model one by one
        self._said: set[str] = set()
        # The running call of the causal model. It is not an argument, because
        # user code calls the decoder.
        self.call: Call | None = None
        self.returns_tuple: dict[nn.Module, bool] = {}  # found by the probe
        self.attended: set[tuple[int, int, int, int]] = set()  # see Step
        self.chunk_choice: ChunkChoice | None = None  # with chunk="auto"
        self.written: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
        # How the head runs, and how it can: "rows", "whole", "none": no head.
        self._head: Literal["rows", "whole", "none"] = "none"
        self._may_head: Literal["rows", "whole", "none"] = "none"
        self._spared: MutableMapping[nn.Module, Spared] = WeakKeyDictionary()
        # Found by the probe: see Step.
        self.numbered: WeakSet[nn.Module] = WeakSet()
        self.carriers: WeakSet[nn.Module] = WeakSet()
        self.whole_layers: MutableMapping[nn.Module, WholeKind] = (
            WeakKeyDictionary())
        self._known_causal: set[Hashable] = set()  # see Step
        self.progress: progress.Progress | None = None  # None: quiet
        self.room: Room | None = None  # for layers that run plain
        self._adapter: Patched | None = None
        self._ran = _NOTHING

    def begin(self, length: int, device: torch.device, model: Engaging,
              chunk: int | None = None, check: bool | None = None,
              alone: bool = False) -> Step:
        """Returns a step over `length` rows; if `alone`, not shared with other
        ranks, and with hidden states on the device."""
        trains = torch.is_grad_enabled()
        measured = None
        if self.planning is not None and chunk is None and trains:
            measured = self._plan()
        # A sampled check in a measured step would be measured, too.
        checks = self.checks.begin(chunk is None, measured is None) if (
            check is None and trains) else StepChecks(bool(check))
        step = Step(self.arena, length, chunk or self.chunk, device, checks,
                    model, self.written, self.policy,
                    None if alone else self.ranks, measured,
                    self.in_host and not alone,
                    self.planning.kinds if self.planning else {}, self.carriers)
        if not check:
            # A trial's step keeps a lock of its own: the trial's thread holds
            # the stream's lock while it waits for the layer's backward, which
            # on a GPU runs in another thread.
            step.turn = self.turn
        step.progress = None if alone else self.progress
        step.spared, step.known_causal = self._spared, self._known_causal
        step.attended, step.numbered = self.attended, self.numbered
        step.whole_layers = self.whole_layers
        step.kernel = self.kernel
        step.rerun = math.ceil(self.rerun * len(step.whole))
        return step

    def plain(self, step: Step, layers: Sequence[nn.Module],
              shape: torch.Size) -> Forward | None:
        """Returns what decides which layers run plain; None: none does."""
        if self.room is None or not torch.is_grad_enabled() or (
                self.planning is not None and not self.planning.over):
            return None
        step.plain = self.room.begin(self.checks.kinds, layers, shape)
        return step.plain

    def for_trials(self, device: torch.device) -> Stream:
        """Returns a stream like this, for the trials of a twin on `device`."""
        made = Stream(self.session, Fields(
            chunk=self.chunk, rows=self.rows, hidden=self.hidden), Policy(),
                      self.ranks, ProcessMemory(device))
        made._said = self._said
        return made

    def forget(self) -> None:
        """Drops session, ranks and arena. A trial's findings outlive them."""
        self.session = self.ranks = None  # type: ignore[assignment]
        self.arena = self.turn = None  # type: ignore[assignment]

    def choose_chunk(self, like: Tensor, batch: int) -> None:
        """Sets `chunk` by measuring the attention that the probe has seen, for
        `batch` sequences in the dtype of `like`; the same on all ranks."""
        if not self.attended:
            raise invalid("stream: chunk = 'auto': it is found by measuring "
                          "attention, and no layer was seen to call it: pass "
                          + ("chunk=1024, say" if self.returns_tuple else
                             "sample=lambda: model(ids)"))
        size = 1 if self.ranks is None else self.ranks.size
        kinds = [chunk_size.Heads(
            q // size, k if size == 1 else len(self.ranks.kv_heads(q, k)) //
            size, width, value, batch) for q, k, width, value in self.attended]
        self.chunk_choice = chunk_size.agreed(chunk_size.measured(
            self.arena, kinds, self.arena.device, like.dtype), Board.of_job())
        self.chunk = max(self.chunk_choice.rows, size)

    @property
    def head(self) -> Literal["rows", "whole", "none"]:
        """How the head runs with labels: "rows", "whole", or "none" if there
        is none. The user may set it, to "rows" only if stream() found that
        this is exact."""
        return self._head

    @head.setter
    def head(self, how: Literal["rows", "whole"]) -> None:
        need("stream", "head", how, HEAD)
        if how == "rows" and self._may_head != "rows":
            raise invalid("stream: head = 'rows': head and loss of this model "
                          "are not the same by rows; leave it as it is")
        self._head = how

    def found_head(self, how: Literal["rows", "whole", "none"]) -> None:
        """Records how the head can run, as a trial found. The user's own choice
        is kept, unless the trial found "whole"."""
        chosen = self._head != self._may_head
        self._may_head = how
        if not chosen or how == "whole":
            self._head = how

    @contextlib.contextmanager
    def probing_again(self) -> Iterator[None]:
        """Wraps a probe within a call, and restores counters and kernel at its
        end. Discards what earlier probes and replays found about layers."""
        self._spared.clear()
        if self.room is not None:
            self.room.forget()
        try:
            with swapped.attributes(self, kernel="auto", _ran=_NOTHING):
                yield
        finally:
            self.checks.has_passed = False

    @property
    def whole(self) -> list[tuple[WholeKind, int]]:
        """Kinds of layers that run whole, each with its number of layers."""
        kinds = [self.whole_layers[layer] for layer in (
            self._adapter.layers if self._adapter else ())
            if layer in self.whole_layers]
        return [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)]

    def say_whole(self) -> None:
        """Reports which layers run whole, and their memory: as a warning if it
        grows with the square of a sequence's length."""
        for kind, count in self.whole:
            line = f"{count} x {kind}"
            if kind.bytes_per_pair:
                self.warn_once(line)
            else:
                self.say_once(line)

    @property
    def least_rows(self) -> int:
        """Minimum rows of a streamed sequence; shorter ones run unstreamed."""
        return max(1, self.min_tokens, self.ranks.size if self.ranks else 1)

    def agree(self, call: str, x: Tensor, given: Mapping[str, Any],
              later: bool = False) -> int:
        """Returns a seed that all ranks of the group share. Raises `Error` if
        their rows `x` [B, S, ...], arguments or settings differ; a collective
        with a group. With `later` it returns 0, and the decoder's call, which
        follows, compares."""
        if self.peers is not None:
            self.peers.computes()
        if self.ranks is None:
            return 0
        asked = agreement.asked(x.device, {
            "call": call, "chunk": self.chunk, "length": x.shape[1],
            "rerun": self.rerun, "min_tokens": self.min_tokens,
            "torch.is_grad_enabled()": torch.is_grad_enabled()}, given)
        if later and self.call is not None:
            self.call.outer = asked
            return 0
        outer = self.call.outer if self.call is not None else None
        return agreement.agree(self.ranks, outer, asked)

    def _plan(self) -> Measured | None:
        """Adopts a new or changed plan if there is one. Returns the meter of
        the next step, or None if it is not measured."""
        self.policy = (self.planning.policy(self.arena)
                       or self.planning.changed(self.arena) or self.policy)
        return self.planning.begin(self.arena)

    @takes("shard", **SHARDED)
    def shard(self, input_ids: Tensor, labels: Tensor | None = None,
              position_ids: Tensor | None = None) -> Shard:
        """Returns this rank's rows of whole sequences [B, S], for the user's
        own head or loss. The streamed model takes the whole sequences, and
        returns the hidden states of the shard's rows.

            local = st.shard(ids, labels)
            h = model.model(ids).last_hidden_state  # [B, own rows, H]
            loss = local.mean(cross_entropy(
                head(h).flatten(0, 1), local.shift_labels.flatten(),
                reduction="sum"))
        """
        own, length = None, input_ids.shape[1]
        if self.ranks is not None and length >= self.least_rows:
            own = indices(self.ranks.own(chunks_of(
                length, self.chunk, self.ranks.size)), input_ids.device)
        return shard(self.ranks, own, input_ids, labels, position_ids)

    def ended(self, step: Step) -> None:
        if self.progress is not None:
            self.progress.idle()
        step.forward_over()
        if step.measured is not None:
            self.planning.forward_over(self.arena.used_bytes)
        blocks, steps, kernels = self._ran
        self._ran = (blocks + step.blocks_run, steps + 1,
                     kernels | step.kernels)

    def say_once(self, what: str) -> None:
        """Prints a line on stderr once, unless the stream is quiet."""
        if self.progress is not None and what not in self._said:
            self._said.add(what)
            print(f"sluice: {what}", file=sys.stderr, flush=True)

    def warn_once(self, what: str) -> None:
        """Issues a Python warning once, also with quiet=True."""
        if what not in self._said:
            self._said.add(what)
            warnings.warn(f"sluice: {what}", UserWarning, stacklevel=2)

    def stats(self) -> Stats:
        arena, (blocks, steps, kernels) = self.arena, self._ran
        plain = (self.room.count, self.room.kept) if self.room else (0, 0)
        return Stats(arena.used_bytes, arena.peak_bytes, arena.leased_bytes,
                     blocks, steps, tuple(sorted(kernels)), *plain)

    def reset_stats(self) -> None:
        """Resets the counters and the peak."""
        self._ran = _NOTHING
        self.arena.reset_peak()

    @property
    def plan(self) -> dict[str, Any] | None:
        """With `policy="plan"`, from the third step on: this rank's part of
        the active plan (proto/plan), with the `why` of each class."""
        return None if self.planning is None else self.planning.plan

    def unstream(self) -> None:
        """Restores the model's own forwards and ends the lease; pending
        backwards are lost. Idempotent."""
        if self._adapter is not None:
            self._adapter.detach()
            self._adapter = None
            if self.progress is not None:
                self.progress.close()
            self._close()

    def _close(self) -> None:
        self.arena.close(
            "unstream() has ended the stream that this forward ran in, and "
            "with it what backward needs: run the forward again, and "
            "unstream() after backward()")
        if self.planning is not None:
            self.planning.close()
        if self.peers is not None:
            self.peers.close()
        if self._owns_session:
            self.session.close()
