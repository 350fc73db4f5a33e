"""One forward of the decoder through its streamed layers: the sequence's chunks
and masks, and where its tensors are."""
from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sluice.attention import masks
from sluice.attention.gpu_blocks import Kernel
from sluice.attention.intervals import Intervals
from sluice.base import swapped
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Engaging, WholeKind
from sluice.memory.arena import HostArena
from sluice.node import carried_state
from sluice.node.checked_chunks import StepChecks
from sluice.node.hidden_rows import InHost, OnDevice, Standing
from sluice.node.plain_layers import Forward
from sluice.node.shared_tensors import Handed
from sluice.node.side_outputs import Side
from sluice.node.skipped_products import Spared
from sluice.plan.policy import Policy
from sluice.plan.step_costs import Measured
from sluice.ranks import board
from sluice.ranks.groups import Ranks
from sluice.ranks.progress import Progress

T = TypeVar("T")
_current = threading.local()  # .step: the step of this thread


def current() -> Step | None:
    """Returns the step that this thread runs or replays, if any."""
    return getattr(_current, "step", None)


def chunks_of(length: int, chunk: int, least: int = 1) -> list[range]:
    """Splits the rows 0 .. length into pieces of `chunk` rows. The last may be
    shorter; if it had fewer than `least` rows, it joins the one before it."""
    starts = list(range(0, length, chunk))
    if len(starts) > 1 and length - starts[-1] < least:
        starts.pop()
    return [range(a, b) for a, b in zip(starts, [*starts[1:], length])]


def end_to_end(pieces: Sequence[range]) -> list[range]:
    """Returns ranges as long as the pieces, one after the other from 0."""
    ends = list(itertools.accumulate(map(len, pieces)))
    return [range(b - len(p), b) for p, b in zip(pieces, ends)]


class Step:
    """The state of one step. Lives as long as a layer call of it may be
    replayed.

    [Note: mask markers]
    transformers passes the mask from the model to each attention as a tensor. A
    [B, 1, S, S] mask of millions of tokens cannot exist, so the model gets a
    marker: one element expanded to that shape. Layers may pass the marker on
    and take views of it. A tensor computed from it has other storage, so it is
    unknown here and is refused instead of ignored. A model that never asks
    transformers for a mask makes the tensor itself: the step reads all of it,
    and layers get a marker in its place.
    """

    def __init__(self, arena: HostArena, length: int, chunk: int,
                 device: torch.device, checks: StepChecks, model: Engaging,
                 written: dict[nn.Module, list[tuple[nn.Module, str]]],
                 policy: Policy, ranks: Ranks | None, measured: Measured | None,
                 in_host: bool, kinds: Mapping[nn.Module, str],
                 carriers: Collection[nn.Module]):
        self.arena, self.length, self.device = arena, length, device
        self.ranks = ranks  # the ranks that share the sequence
        # `whole`: chunks of the sequence, which attention sees. `own`: this
        # rank's rows of each. `chunks`: these rows numbered from 0 on.
        self.whole = chunks_of(length, chunk, ranks.size if ranks else
                               carried_state.LEAST if carriers else 1)
        self.own = ranks.own(self.whole) if ranks else self.whole
        self.chunks = end_to_end(self.own)
        self.rows = self.chunks[-1].stop
        self.rerun = 0  # number of chunks run again; [Note: run again] in layer
        # With ranks: (layer, args, kwargs) -> the same for this rank's rows.
        self.arguments: Callable | None = None
        self.checks, self.policy, self.measured = checks, policy, measured
        # Names of layers' kinds, if a plan distinguishes them.
        self.kinds = kinds
        self.blocks_run = 0
        self.kernel: Kernel = "auto"  # requested for attention on a GPU
        self.kernels: set[str] = set()  # kernels of attention that ran
        self.turn = threading.RLock()  # the stream's lock, except in trials
        # Keeps the hidden states between layers.
        self.hidden: Standing | OnDevice = (
            InHost(arena, self.chunks, device) if in_host
            else OnDevice(arena, self.chunks))
        self._model, self._written = model, written
        # The products that the replays of a layer skip.
        self.spared: MutableMapping[nn.Module, Spared] = {}
        # Layers that number their rows; see [Note: numbered rows] in rows.
        self.numbered: Container[nn.Module] = ()
        self.first_row = 0  # number of the first row in `numbered` layers
        self.forget_handed()
        self.carriers = carriers  # layers that carry a state along the rows
        # See [Note: whole layers] in whole_layers.
        self.whole_layers: Mapping[nn.Module, WholeKind] = {}
        # See [Note: plain layers] in plain_layers; None: no layer runs plain.
        self.plain: Forward | None = None
        # By storage: bytes saved by whole layers' replays; None: not measured.
        self.saved: dict[int, int] | None = None
        self.known_causal: set[Hashable] = set()  # see found_once()
        # By storage: the marker's element, a function that finds its intervals,
        # and one that makes the model's own mask.
        self._masks: dict[int, tuple[Tensor, Callable[[], Intervals],
                                     Callable[[], Any]]] = {}
        # With packed documents: the first row [B, S] of each row's document.
        # Layers get no other description, so the mask must separate documents.
        self.documents: Tensor | None = None
        # If set, the first row [B, S] of each row's part, between jumps of
        # position_ids; a mask that separates the parts is refused.
        self.parts: Tensor | None = None
        # bool [B, S], from the caller's 2-D mask: rows that may see no key.
        self.padding: Tensor | None = None
        self.blind: Tensor | None = None  # rows that saw no key in some layer
        self.progress: Progress | None = None  # None if progress output is off
        # By layer: its outputs besides hidden states; see [Note: sides].
        self.sides: dict[nn.Module, Side] = {}
        self.noted: tuple[Tensor, ...] = ()
        self._once: dict[Hashable, Any] = {}
        self.at_end: list[weakref.WeakMethod] = []  # see forward_over()
        self.asked = False  # whether the model asked for a mask
        # Calls of attention: heads of q, of k and v, widths of q and k, of v.
        self.attended: set[tuple[int, int, int, int]] = set()

    @contextlib.contextmanager
    def engaged(self) -> Iterator[None]:
        try:
            with swapped.attributes(_current, step=self), self.turn, (
                    self._model.engage()), self.telling():
                yield
        except BaseException:
            self.forget_handed()
            if self.progress is not None:
                self.progress.idle()
            raise

    def telling(self) -> contextlib.AbstractContextManager:
        """Reports exceptions within the block to ranks that wait."""
        if self.ranks is not None:
            return self.ranks.telling()
        return (contextlib.nullcontext() if self.progress is None else
                board.telling_job())

    def inside(self) -> contextlib.AbstractContextManager:
        return self._model.inside()

    def own_attention(self) -> contextlib.AbstractContextManager:
        return self._model.own_attention()

    def at_once(self, layer: nn.Module) -> list[range]:
        """Returns the row ranges that the layer runs on, one at a time."""
        return [range(self.rows)] if layer in self.whole_layers else (
            self.chunks)

    def written_by(self, layer: nn.Module) -> list[tuple[nn.Module, str]]:
        """Returns the buffers (owner, name) that the layer's forward writes."""
        return self._written.get(layer, [])

    def forget_handed(self) -> None:
        """Drops tensors that layers share; calls that use them keep them."""
        self.handed = Handed(self.arena, self.device)

    def forward_over(self) -> None:
        """Ends the decoder's forward; calls the live methods of `at_end`."""
        self.forget_handed()
        for method in self.at_end:
            action = method()
            if action is not None:
                action()

    def causal(self) -> Intervals:
        return self.once("causal", lambda: Intervals.causal(
            self.length, self.device))

    def found_once(self, key: Hashable, find: Callable[[], Intervals]
                   ) -> Intervals:
        """Returns the result of `find`, the intervals of a pure mask function;
        skips `find` if the function of that `key` is known to be causal."""
        if key in self.known_causal:
            return self.causal()
        found = find()
        if found.is_causal:
            self.known_causal.add(key)
        return found

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the result of `make`, called once per key and step."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def marker(self, batch: int, find: Callable[[], Intervals],
               own: Callable[[], Any]) -> Tensor:
        """Returns a marker in place of a mask: bool [batch, 1, S, S]. `find` is
        called once, if a layer uses the mask: models also make unused masks.
        `own` makes the model's own mask, within `own_attention`."""
        one = torch.ones(1, dtype=torch.bool, device=self.device)
        self._masks[one.untyped_storage().data_ptr()] = (
            one, functools.cache(find), own)
        return one.view(1, 1, 1, 1).expand(batch, 1, self.length, self.length)

    def adopt(self, other: Step) -> None:
        """Adopts the markers of another step of the same length."""
        self._masks.update(other._masks)
        self.asked |= other.asked

    def marker_of(self, mask: Tensor) -> Tensor | None:
        """Returns a marker for a mask [B or 1, heads or 1, S, S or more] that
        the model made; None for other tensors, and if the mask may be computed
        from markers, which have no values."""
        if self.asked or mask.dim() != 4 or mask.shape[-2] != self.length or (
                mask.shape[-1] < self.length):
            return None
        # Some masks have a column for one more token, which attention ignores.
        square = mask[..., :self.length]
        _, marker = self.once(("dense", mask.data_ptr()), lambda: (
            mask, self.marker(mask.shape[0], lambda: masks.dense(
                square, self.padding), lambda: mask)))
        return marker

    def own_mask(self, marker: Tensor) -> Any:
        """Returns the model's own mask, which the marker replaced."""
        return self._masks[marker.untyped_storage().data_ptr()][2]()

    def unmarked(self, tree: Any) -> Any:
        """Replaces markers in `tree` by the model's own masks, made once."""
        return pytree.tree_map(lambda leaf: self.once(
            ("own mask", leaf.untyped_storage().data_ptr()),
            lambda: self.own_mask(leaf)) if isinstance(leaf, Tensor)
            and self.is_marker(leaf) else leaf, tree)

    def scores_bytes(self, tree: Any, writes: bool, x: Tensor) -> int:
        """Returns the bytes of tensors [S, S] that the model's own attention
        makes for x [B, S, H]: probabilities if it `writes` them, else the masks
        in the layer's arguments `tree` that are not causal."""
        if writes:
            heads = max((heads for heads, *_ in self.attended), default=1)
            each = heads * (4 if x.itemsize == 4 else 4 + x.itemsize)
        else:
            markers = [leaf.untyped_storage().data_ptr() for leaf in
                       pytree.tree_leaves(tree) if isinstance(leaf, Tensor)
                       and self.is_marker(leaf)]
            each = (1 + x.itemsize) * any(
                not self._masks[marker][1]().is_causal for marker in markers)
        return len(x) * self.length ** 2 * each

    def is_marker(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._masks

    def mask_of(self, module: nn.Module, marker: Tensor | None,
                is_causal: bool) -> Intervals:
        """Returns the mask of an attention module's call, given its marker."""
        name = type(module).__name__
        seen = self._mask_of(name, marker, is_causal)
        if self.documents is not None and not seen.within(self.documents):
            raise Unsupported(name, "a mask that does not keep packed "
                              "documents apart", "do not pack this model")
        if self.parts is not None and seen.within(self.parts):
            raise Unsupported(name, "position_ids that go on elsewhere than at "
                              "0, or begin with several 0, in a call that "
                              "would make a cache: with a cache transformers "
                              "takes them for one sequence, else for documents",
                              "pass attention_mask=torch.ones_like(input_ids) "
                              "for one sequence, use_cache=False for documents")
        if seen.blind is not None and seen.blind is not self.blind:
            self.blind = seen.blind if self.blind is None else (
                self.blind | seen.blind)
        return seen

    def _mask_of(self, name: str, marker: Tensor | None,
                 is_causal: bool) -> Intervals:
        if marker is None:
            if is_causal:
                return self.causal()
            raise Unsupported(name, "attention in both directions")
        found = self._masks.get(marker.untyped_storage().data_ptr())
        if found is None:
            raise Unsupported(
                name, f"a mask tensor of shape {tuple(marker.shape)} and type "
                f"{marker.dtype}: given by the caller in 4-D, or computed by "
                "the model itself", "pass a 2-D attention_mask or position_ids"
                " that restart, or do not stream this model")
        return found[1]()
