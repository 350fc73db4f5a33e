"""A decoder's forward on one rank's rows of a sequence that several share.

[Note: whole arguments]
What a model makes for its layers beside the hidden states depends on the
whole sequence: masks find documents where positions restart, rotary tables
may depend on the greatest position. So the decoder's own forward runs twice.
First on the whole sequence, with one row of embeddings expanded to its
length and nothing in the place of each layer but a note of what it is called
with; it ends at the last layer. Then on this rank's rows, with their
positions in the whole sequence; there each layer gets its rows of the noted
arguments. Only hidden states, and arguments that need a gradient, are those
of the second run: `check` compares them with the whole sequence's when the
model is streamed, and refuses models that make positions of their own.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sluice.errors import Unsupported
from sluice.randomness import Still, apart, undisturbed
from sluice.ranks import indices
from sluice.replay import Snapshot
from sluice.rows import names_of
from sluice.step import chunks_of
from sluice.adapters.stand_in import Recorded
from sluice.adapters.whole_calls import Call, Expanded, Noted, merged, rows_of

if TYPE_CHECKING:
    from sluice.adapters.hf import Adapter
    from sluice.step import Step
    from sluice.streaming import Stream

# Arguments of a decoder that have rows, and along which dimension.
INPUTS: Mapping[str, int] = {
    "input_ids": 1, "inputs_embeds": 1, "position_ids": -1,
    "attention_mask": 1, "token_type_ids": 1, "cache_position": -1,
}
# Of a norm: rounding, where matrices of other sizes are multiplied.
LIMIT, HALF_LIMIT = 1e-5, 2e-2


class Dealing:
    """How one model's sequences are dealt; has no state of a call."""

    def __init__(self, adapter: Adapter, stream: Stream,
                 accepts: Collection[str]):
        self._adapter, self._stream, self._accepts = adapter, stream, accepts
        self._layers = list(adapter.layers)  # without later wrappers
        # Arguments that the model makes something of which is not dealt.
        self._undealt: dict[str, str] = {}

    def refuse(self, given: dict[str, Any]) -> None:
        """What a call asks for that one rank's rows cannot give."""
        entry = self._adapter.entry
        name = type(entry).__name__
        what = self._stream.needs_all
        if given.get("output_hidden_states",
                     getattr(entry.config, "output_hidden_states", False)):
            what = "output_hidden_states"
        if what is not None:
            raise Unsupported(name, f"{what}, under a group: each rank has "
                              "its own rows alone", "leave it out, or make "
                              "the loss of st.shard()'s labels")
        for argument, why in self._undealt.items():
            value = given.get(argument)
            if value is not None and not bool(value.all()):
                raise Unsupported(name, f"{argument} with zeros under a group:"
                                  f" {why}", "leave it out")

    def forward(self, step: Step, given: dict[str, Any]) -> Any:
        """The decoder's own forward on this rank's rows of `given`, its
        arguments for the whole sequence, within `step.engaged()`."""
        entry, ranks = self._adapter.entry, step.ranks
        own = indices(ranks.own(step.whole), step.device)
        self._stream.own_rows = own
        noted = self._whole(step, given, own)
        step.arguments = lambda layer, args, kwargs: merged(
            layer, noted[self._layers.index(layer)], Call(args, kwargs))
        with _unchanged(entry, self._adapter.layers), apart(
                ranks.rank, step.device):
            return self._adapter.own_forward(entry)(
                **self._local(given, step.length, own))

    def _whole(self, step: Step, given: dict[str, Any], own: Tensor
               ) -> dict[int, Call]:
        """By layer, this rank's rows of its arguments for the whole
        sequence."""
        noted: dict[int, Call] = {}
        # Layers share tensors: each is cut once.
        cuts: dict[int, tuple[Tensor, Tensor]] = {}

        def note(index: int, _: Tensor, call: Call) -> None:
            layer = self._layers[index]
            names = names_of(type(layer).forward)
            rows = functools.partial(rows_of, layer, step, own, cuts,
                                     self._stream.rows)
            noted[index] = Call(
                tuple(rows(names(i), v) for i, v in enumerate(call.args)),
                {name: rows(name, v) for name, v in call.kwargs.items()})
            if len(noted) == len(self._layers):
                raise Recorded

        with torch.no_grad(), undisturbed(step.device), self._expanded(), (
                self._noting(note)):
            with contextlib.suppress(Recorded):
                self._adapter.own_forward(self._adapter.entry)(**given)
        return noted

    def _local(self, given: dict[str, Any], length: int, own: Tensor
               ) -> dict[str, Any]:
        """A decoder's arguments for the rows `own`; positions count from the
        beginning of the whole sequence."""
        name_of = type(self._adapter.entry).__name__
        local = {}
        for name, value in given.items():
            if isinstance(value, Tensor) and name in INPUTS:
                dim = INPUTS[name]
                if value.shape[dim] != 1 or length == 1:
                    value = value.index_select(dim, own)
            elif isinstance(value, Tensor) and value.dim() > 0:
                raise Unsupported(
                    name_of, f"argument '{name}' of shape "
                    f"{tuple(value.shape)} under a group: which rows of the "
                    "sequence it belongs to is not known", "leave it out")
            local[name] = value
        if local.get("position_ids") is None and (
                "position_ids" in self._accepts):
            local["position_ids"] = own[None]
        return local

    # --- the model without its layers ---------------------------------------

    @contextlib.contextmanager
    def _noting(self, note: Callable) -> Iterator[None]:
        """Each layer only tells `note` its number and what it is called
        with."""
        layers = self._adapter.layers
        real = dict(layers._modules)
        for index, (name, layer) in enumerate(real.items()):
            layers._modules[name] = Noted(
                layer, self._stream.returns_tuple[self._layers[index]],
                functools.partial(note, index))
        try:
            yield
        finally:
            layers._modules.update(real)

    @contextlib.contextmanager
    def _expanded(self) -> Iterator[None]:
        """The embedding's rows take no memory."""
        table = self._adapter.decoder.get_input_embeddings()
        places = [(parent, name) for parent in self._adapter.entry.modules()
                  for name, child in parent._modules.items()
                  if child is table]
        for parent, name in places:
            parent._modules[name] = Expanded(table)
        try:
            yield
        finally:
            for parent, name in places:
                parent._modules[name] = table

    # --- is a rank's part the whole's? --------------------------------------

    def check(self, ids: Tensor, chunk: int) -> None:
        """Compares what the model makes outside its layers of each rank's
        rows with those rows of what it makes of all. Raises `Unsupported`."""
        whole = {"input_ids": ids}
        different = self._different(whole, chunk)
        if different:
            raise Unsupported(
                type(self._adapter.entry).__name__, f"{different} not the "
                "same for a rank's rows of a sequence, given with their "
                "positions, as for the whole of it: it makes positions of its "
                "own", "do not use a group with this model")
        if "attention_mask" in self._accepts:
            mask = torch.ones_like(ids)
            mask[:, -ids.shape[1] // 3:] = 0
            different = self._different({**whole, "attention_mask": mask},
                                        chunk)
            if different:
                self._undealt["attention_mask"] = (
                    f"{different} not the same for a rank's rows")

    def _different(self, given: dict[str, Any], chunk: int) -> str | None:
        ranks, length = self._stream.ranks, given["input_ids"].shape[1]
        chunks = chunks_of(length, chunk, ranks.size)
        expected = self._outside(given)
        for rank in range(ranks.size):
            own = indices(ranks.own(chunks, rank), given["input_ids"].device)
            got = self._outside(self._local(given, length, own))
            for (name, a), (_, b) in zip(expected, got):
                if a.dim() < 2 or not _near(a.index_select(1, own), b):
                    return name
        return None

    def _outside(self, given: dict[str, Any]) -> list[tuple[str, Tensor]]:
        """What the model makes that has the hidden states' rows: the input of
        the first layer, arguments that need a gradient, what it returns."""
        found: list[tuple[str, Tensor]] = []

        def note(_: int, x: Tensor, call: Call) -> None:
            if not found:
                found.append(("the input of its layers is", x.detach()))
            for value in pytree.tree_leaves(tuple(call)):
                if isinstance(value, Tensor) and value.requires_grad:
                    found.append(("arguments of its layers are",
                                  value.detach()))

        step = self._stream.begin(
            given["input_ids"].shape[1], given["input_ids"].device,
            self._adapter, check=False, alone=True)
        with torch.enable_grad(), Still(), step.engaged(), self._noting(note):
            out = self._adapter.own_forward(self._adapter.entry)(
                **given, use_cache=False)
        return [*found, ("its output is", out[0].detach())]


@contextlib.contextmanager
def _unchanged(entry: nn.Module, layers: nn.ModuleList) -> Iterator[None]:
    """What the modules outside the layers know stays as it was: tables of
    positions grow with the greatest they met, which is the whole run's."""
    inside = set(layers.modules())
    outside = [m for m in entry.modules() if m not in inside]
    known = [(m, {k: v for k, v in vars(m).items()
                  if isinstance(v, (int, float, str, Tensor))})
             for m in outside]
    kept = Snapshot([(m, n) for m in outside
                     for n, b in m._buffers.items() if b is not None])
    try:
        yield
    finally:
        for module, values in known:
            vars(module).update(values)
        kept.restore(if_written=True)


def _near(a: Tensor, b: Tensor) -> bool:
    limit = LIMIT if a.dtype in (torch.float32, torch.float64) else HALF_LIMIT
    a, b = a.double(), b.double()
    return a.shape == b.shape and bool(
        (a - b).norm() <= limit * a.norm() + 1e-12)
