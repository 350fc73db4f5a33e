"""`sluice.stream`: a model whose decoder layers run chunk by chunk."""
from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sluice import agreement, progress, settings
from sluice.arena import HostArena
from sluice.dealt import Shard, shard
from sluice.measured import Measured
from sluice.planned import Planning
from sluice.policy import Policy
from sluice.ranks import Ranks, indices
from sluice.rows import ROWS
from sluice.session import Session
from sluice.step import Engaging, Step, chunks_of

if TYPE_CHECKING:
    from sluice.adapters.hf import Adapter
    from sluice.adapters.layers import Layers, OwnLayers

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
                 rows: Mapping[str, int | None], check: Check, min_tokens: int,
                 policy: Policy, ranks: Ranks | None = None,
                 hidden: Literal["device", "host"] = "device"):
        self.session, self._owns_session = session, owns_session
        self.arena = HostArena(session)
        self.chunk, self.check, self.min_tokens = chunk, check, min_tokens
        self.hidden = hidden
        self.in_host = False  # whether they are: not for the layers' probe
        self.policy = policy
        self.planning: Planning | None = None
        self.rows = {**ROWS, **rows}
        self.ranks = ranks  # that share each sequence
        # Of this rank, in the decoder's latest forward; None: of no other.
        self.own_rows: Tensor | None = None
        # What of the call of the causal model needs all rows.
        self.needs_all: str | None = None
        self.returns_tuple: dict[nn.Module, bool] = {}  # found by the probe
        self.written: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
        # How the head runs: "rows", "whole", or "none" where there is none.
        self.head: Literal["rows", "whole", "none"] = "none"
        self.progress: progress.Progress | None = None  # None: quiet
        self._adapter = None
        self._blocks = self._count = 0
        self._checked = False  # a step that may have a backward

    def begin(self, length: int, device: torch.device, model: Engaging,
              chunk: int | None = None, check: bool | None = None,
              alone: bool = False) -> Step:
        """A step over `length` rows, shared with no other rank and with
        hidden states on the device if `alone`; the adapter calls it."""
        if check is None:
            check = self.check == "always" or (
                self.check == "first" and not self._checked)
        measured = None
        if self.planning is not None and chunk is None and (
                torch.is_grad_enabled()):
            measured = self._plan()
        step = Step(self.arena, length, chunk or self.chunk, device, check,
                    model, self.written, self.policy,
                    None if alone else self.ranks, measured,
                    self.in_host and not alone)
        step.progress = None if alone else self.progress
        return step

    @property
    def least_rows(self) -> int:
        """Shorter sequences are run by the model itself, whole."""
        return max(1, self.min_tokens, self.ranks.size if self.ranks else 1)

    def agree(self, call: str, x: Tensor, given: Mapping[str, Any]) -> None:
        """Raises `Error` where ranks of the group have other rows `x`
        [B, S, ...], arguments or settings; a collective with a group."""
        if self.ranks is not None:
            agreement.agree(self.ranks, x.device, {
                "call": call, "chunk": self.chunk, "length": x.shape[1],
                "min_tokens": self.min_tokens}, given)

    def _plan(self) -> Measured | None:
        """Takes the plan that the step before has been measured for, or one
        that the daemon has changed it for."""
        self.policy = (self.planning.policy(self.arena)
                       or self.planning.changed(self.arena) or self.policy)
        return self.planning.begin()

    def shard(self, input_ids: Tensor, labels: Tensor | None = None,
              position_ids: Tensor | None = None) -> Shard:
        """This rank's rows of whole rows [B, S], for who has a head or a loss
        of their own: the streamed model is given the whole rows, and gives
        the hidden states of `shard`'s rows.

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
        self._blocks += step.blocks_run
        self._count += 1
        self._checked |= step.check and torch.is_grad_enabled()

    def stats(self) -> Stats:
        arena = self.arena
        return Stats(arena.used_bytes, arena.peak_bytes, arena.leased_bytes,
                     self._blocks, self._count)

    def reset_stats(self) -> None:
        """Counts and the peak start anew."""
        self._blocks = self._count = 0
        self.arena.reset_peak()

    @property
    def plan(self) -> dict[str, Any] | None:
        """With `policy="plan"`, from the third step on: this rank's part of
        the plan by which it runs (proto/plan), `why` of each class among it.
        """
        return None if self.planning is None else self.planning.plan

    def unstream(self) -> None:
        """Gives the model its own forwards back and ends the lease; a
        backward that is still to come is lost. Safe to call again."""
        if self._adapter is not None:
            self._adapter.detach()
            self._adapter = None
            if self.progress is not None:
                self.progress.close()
            self.arena.close()
            if self.planning is not None:
                self.planning.close()
            if self._owns_session:
                self.session.close()


def stream(model: nn.Module | None = None, *,
           layers: Layers | None = None,
           attention: Literal["sdpa"] | None = None,
           sample: Callable[[], object] | None = None,
           session: Session | None = None,
           chunk: int = 1024, rows: Mapping[str, int | None] | None = None,
           policy: str | Mapping[str, Mapping[str, float]] = "recompute",
           check: Check = "first", min_tokens: int = 0,
           head: Literal["rows", "whole"] = "rows",
           group: dist.ProcessGroup | None = None,
           hidden: Literal["device", "host"] = "device",
           stalled_s: float = 300.0, quiet: bool = False) -> Stream:
    """Runs the decoder layers of a model chunk by chunk, with k, v,
    attention's results and the layers' inputs in host memory.

    A model of transformers is passed as `model`. Of any other, pass the layers
    and attention="sdpa": each takes hidden states [B, S, H] first and returns
    them, and asks torch for causal attention; embedding, head and loss stay as
    they are.

    The model stays itself: its class, its parameters, `generate`, saving and
    loading. Training forwards (and others without a cache) are streamed;
    with `labels` the head and the loss run on chunks of rows too, and
    whatever reads `logits` then raises `Unsupported`.

    Args:
      model: a decoder of transformers whose attention goes through the
        attention registry (also as a PEFT model).
      layers: in the place of `model`: the decoder layers in order.
      attention: "sdpa" with `layers`: their attention is asked of
        F.scaled_dot_product_attention(is_causal=True), or written out.
      sample: with `layers`: runs the model on 64 tokens or more, as
        `lambda: model(ids)`; by it the layers are probed in stream(). Without
        it they are probed, and refused, in the first call with so many rows;
        shorter ones before that are not streamed.
      session: a session with the node's daemon; None: `Session()`, which
        takes $SLUICE_SOCKET or starts a private simulated daemon. It is
        closed by `unstream()` only where it was made here.
      chunk: rows per chunk.
      rows: further layer arguments that have rows, name -> dimension; a
        table with a row per position may have more rows than the sequence.
        None in the place of a dimension: each chunk is given all of it.
      policy: what backward does with a layer's products of matrices:
        "recompute", or by the name of a weight or a module in the layer
        (`fnmatch`) which parts of the chunks are kept on the device or
        swapped to the host: {"mlp.*": {"keep": 0.25, "swap": 0.5}}; "plan":
        the second training step is measured, from the third on it is as the
        daemon has planned for this node (`Stream.plan`).
      check: compare each replayed chunk with its first forward, bit by bit:
        "first" in the first step, "always", or "off".
      min_tokens: shorter sequences are not streamed.
      head: "whole": with labels too, the model's own head and loss over all
        rows at once, with logits [B, S, vocabulary]; also later, by the
        attribute `head` of what is returned.
      group: its ranks share each sequence: every one of them is given the
        same whole rows, and works on its part of them; see
        [Note: shared sequences] in dealt.
      hidden: where the hidden states between layers and their gradients are:
        "device", or "host", chunk by chunk, for sequences of which not even
        one [B, S, H] should be on the device.
      stalled_s: seconds without a next chunk of a layer, after which each
        rank says on stderr where it is.
      quiet: say nothing on stderr: not in one line what is streamed and how,
        not in a long step where it is, not that nothing moves.

    Raises:
      Unsupported: the model, or how it is set up, cannot be streamed exactly;
        names the module, the feature and what to do. Nothing was changed.
      Error: no daemon, or no memory.
    """
    settings.check(chunk, check, head, hidden, group is not None,
                   layers is not None)
    planned = policy == "plan"
    policy = Policy() if planned else Policy.of(policy)
    ranks = Ranks.of(group, chunk)
    adapter = _adapter(model, layers, attention, sample)
    policy.check(name for layer in adapter.layers
                 for name, _ in layer.named_parameters())
    own = session is None
    made = Stream(Session() if own else session, own, chunk, rows or {},
                  check, min_tokens, policy, ranks, hidden)
    try:
        adapter.attach(made)
        if made.head == "rows":
            made.head = head
        made.reset_stats()  # of the probe
        if planned:
            made.planning = Planning(made.session, len(adapter.layers),
                                     made.arena.copied, quiet)
        made._adapter = adapter
        if not quiet:
            made.progress = progress.Progress(adapter.layers, stalled_s)
            print(progress.attached(made, adapter), file=sys.stderr)
    except BaseException:
        adapter.detach()
        made.arena.close()
        if own:
            made.session.close()
        raise
    return made


def _adapter(model: nn.Module | None, layers: Layers | None,
             attention: str | None, sample: Callable | None
             ) -> Adapter | OwnLayers:
    if (model is None) == (layers is None) or (
            (layers is None) != (attention is None)) or (
            sample is not None and layers is None):
        raise ValueError("stream(model), or stream(layers=…, attention="
                         "'sdpa', sample=…)")
    if layers is None:
        from sluice.adapters import hf  # imports transformers
        return hf.Adapter(model)
    if attention != "sdpa":
        raise ValueError(f"attention = {attention!r}: 'sdpa'")
    from sluice.adapters.layers import OwnLayers
    return OwnLayers(layers, sample)


__all__ = ["Stats", "Stream", "stream"]
