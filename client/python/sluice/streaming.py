"""`sluice.stream`: a model whose decoder layers run chunk by chunk."""
from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from sluice.arena import HostArena, HostTensor
from sluice.policy import Policy
from sluice.rows import ROWS
from sluice.session import Session
from sluice.step import Engaging, Step

if TYPE_CHECKING:
    from sluice.adapters.hf import Adapter

Check = Literal["first", "always", "off"]


@dataclass(frozen=True)
class Stats:
    """What a stream holds and did; bytes are of host memory."""

    host_bytes: int  # held now
    host_peak_bytes: int  # since stream() or reset_stats()
    host_leased_bytes: int
    blocks: int  # blocks of attention run forward
    steps: int  # forwards of the decoder that were streamed


class Stream:
    """What `sluice.stream` returns: the model's hold on host memory.

    Not thread safe: one thread trains a model. Ends with `unstream()`, which
    leaves the model as it was before.
    """

    def __init__(self, session: Session, owns_session: bool, chunk: int,
                 rows: Mapping[str, int], check: Check, min_tokens: int,
                 policy: Policy):
        self.session, self._owns_session = session, owns_session
        self.arena = HostArena(session)
        self.chunk, self.check, self.min_tokens = chunk, check, min_tokens
        self.policy = policy
        self.rows = {**ROWS, **rows}
        self.written: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
        # How the head runs: "rows", "whole", or "none" where there is none.
        self.head: Literal["rows", "whole", "none"] = "none"
        self._adapter = None
        self._abandoned: deque[HostTensor] = deque()
        self._blocks = self._count = 0
        self._checked = False  # a step that may have a backward

    def begin(self, length: int, device: torch.device, model: Engaging,
              chunk: int | None = None, check: bool | None = None) -> Step:
        """A step over `length` rows; the adapter calls it."""
        if check is None:
            check = self.check == "always" or (
                self.check == "first" and not self._checked)
        self._collect()
        return Step(self.arena, length, chunk or self.chunk, device, check,
                    model, self.written, self._abandoned, self.policy)

    def ended(self, step: Step) -> None:
        self._blocks += step.blocks_run
        self._count += 1
        self._checked |= step.check and torch.is_grad_enabled()

    def _collect(self) -> None:
        while self._abandoned:
            self.arena.drop(self._abandoned.popleft())

    def stats(self) -> Stats:
        self._collect()
        arena = self.arena
        return Stats(arena.used_bytes, arena.peak_bytes, arena.leased_bytes,
                     self._blocks, self._count)

    def reset_stats(self) -> None:
        """Counts and the peak start anew."""
        self._collect()
        self._blocks = self._count = 0
        self.arena.reset_peak()

    def unstream(self) -> None:
        """Gives the model its own forwards back and ends the lease; a
        backward that is still to come is lost. Safe to call again."""
        if self._adapter is not None:
            self._adapter.detach()
            self._adapter = None
            self._abandoned.clear()
            self.arena.close()
            if self._owns_session:
                self.session.close()


def stream(model: nn.Module, *, session: Session | None = None,
           chunk: int = 1024, rows: Mapping[str, int] | None = None,
           policy: str | Mapping[str, Mapping[str, float]] = "recompute",
           check: Check = "first", min_tokens: int = 0,
           head: Literal["rows", "whole"] = "rows",
           quiet: bool = False) -> Stream:
    """Runs the decoder layers of a transformers model chunk by chunk, with
    k, v, attention's results and the layers' inputs in host memory.

    The model stays itself: its class, its parameters, `generate`, saving and
    loading. Training forwards (and others without a cache) are streamed;
    with `labels` the head and the loss run on chunks of rows too, and
    whatever reads `logits` then raises `Unsupported`.

    Args:
      model: a decoder of transformers whose attention goes through the
        attention registry (also as a PEFT model).
      session: a session with the node's daemon; None: `Session()`, which
        takes $SLUICE_SOCKET or starts a private simulated daemon. It is
        closed by `unstream()` only where it was made here.
      chunk: rows per chunk.
      rows: further layer arguments that have rows, name -> dimension.
      policy: what backward does with a layer's products of matrices:
        "recompute", or by the name of a weight or a module in the layer
        (`fnmatch`) which parts of the chunks are kept on the device or
        swapped to the host: {"mlp.*": {"keep": 0.25, "swap": 0.5}}.
      check: compare each replayed chunk with its first forward, bit by bit:
        "first" in the first step, "always", or "off".
      min_tokens: shorter sequences are not streamed.
      head: "whole": with labels too, the model's own head and loss over all
        rows at once, with logits [B, S, vocabulary]; also later, by the
        attribute `head` of what is returned.
      quiet: do not say in one line on stderr what is streamed, and how.

    Raises:
      Unsupported: the model, or how it is set up, cannot be streamed exactly;
        names the module, the feature and what to do. Nothing was changed.
      Error: no daemon, or no memory.
    """
    from sluice.adapters import hf  # imports transformers

    if chunk < 1:
        raise ValueError(f"chunk = {chunk}: at least one row per chunk")
    if check not in ("first", "always", "off"):
        raise ValueError(f"check = {check!r}: 'first', 'always' or 'off'")
    if head not in ("rows", "whole"):
        raise ValueError(f"head = {head!r}: 'rows' or 'whole'")
    policy = Policy.of(policy)
    adapter = hf.Adapter(model)
    policy.check(name for layer in adapter.layers
                 for name, _ in layer.named_parameters())
    own = session is None
    made = Stream(Session() if own else session, own, chunk, rows or {},
                  check, min_tokens, policy)
    try:
        adapter.attach(made)
        if made.head == "rows":
            made.head = head
        made.reset_stats()  # of the probe
        made._adapter = adapter
        if not quiet:
            print(_line(made, adapter), file=sys.stderr)
    except BaseException:
        adapter.detach()
        made.arena.close()
        if own:
            made.session.close()
        raise
    return made


def _line(made: Stream, adapter: Adapter) -> str:
    head = {"rows": "head and loss by rows", "none": "no head",
            "whole": "head and loss whole"}[made.head]
    where = (made.session.socket if made.session.daemon is None else
             "a private simulated daemon")
    return (f"sluice: {type(adapter.causal).__name__}: {len(adapter.layers)} "
            f"layers in chunks of {made.chunk} rows, {head}; host memory from "
            f"{where}")


__all__ = ["Stats", "Stream", "stream"]
