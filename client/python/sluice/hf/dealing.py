"""Runs a decoder's forward on one rank's rows of a shared sequence.

[Note: whole arguments]
The arguments that a model passes to its layers beside the hidden states depend
on the whole sequence: masks find documents where positions restart, rotary
tables may depend on the greatest position. So the decoder's own forward runs
twice. The first run has the whole sequence, zeros as embeddings, and as layers
recorders of their arguments; it ends at the last layer. The second run has this
rank's rows with their positions in the whole sequence, and gives each layer
these rows of its recorded arguments. Only hidden states, arguments that need a
gradient, and arguments computed from embeddings come from the second run.
`dealing_trial` finds them, and refuses models that make their own positions.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base import argument_table
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Model
from sluice.base.randomness import apart, undisturbed
from sluice.hf import whole_calls
from sluice.hf.ends import Ends
from sluice.hf.stand_in import Recorded, in_every_place, in_place_of_layers
from sluice.hf.whole_calls import Call, Noted, Place, merged, rows_of
from sluice.node import calls
from sluice.node.setting import unchanged
from sluice.node.step import Step
from sluice.ranks.groups import indices

_INPUTS = argument_table.those("dealt")


class Dealing:
    """Runs a model on a rank's rows; `dealing_trial` sets its findings here."""

    def __init__(self, adapter: Model, ends: Ends, accepts: Collection[str]):
        self.adapter, self.stream, self.accepts = adapter, ends.stream, accepts
        self._ends = ends
        self.layers = list(adapter.layers)  # before anything wraps them
        # Arguments of layers that come from the run on a rank's own rows.
        self.made_of_rows: set[Place] = set()
        # By argument: the reason why it cannot be dealt if it has zeros.
        self.undealt: dict[str, str] = {}
        # Whether zeros in place of embeddings may be expanded from one number.
        self.expands = True

    def refuse(self, call: calls.Call, given: dict[str, Any]) -> None:
        """Raises `Unsupported` if the call needs more than one rank's rows."""
        entry = self.adapter.entry
        name = type(entry).__name__
        what = call.needs_all
        if argument_table.wants(entry, given, "output_hidden_states"):
            what = "output_hidden_states"
        if what is not None:
            raise Unsupported(name, f"{what}, under a group: each rank has "
                              "its own rows alone", "leave it out, or make "
                              "the loss of st.shard()'s labels")
        for argument, why in self.undealt.items():
            value = given.get(argument)
            if value is not None and not bool(value.all()):
                raise Unsupported(name, f"{argument} with zeros under a group:"
                                  f" {why}", "leave it out")

    def forward(self, call: calls.Call, step: Step, given: dict[str, Any]
                ) -> Any:
        """Runs the decoder's own forward on this rank's rows of `given` (the
        arguments for the whole sequence), within `step.engaged()`."""
        entry, ranks = self.adapter.entry, step.ranks
        own = indices(step.own, step.device)
        call.own_rows = own
        noted = self.whole(step, given, own)

        def arguments(layer: nn.Module, args: tuple, kwargs: dict) -> Call:
            index = self.layers.index(layer)
            return merged(index, layer, noted[index], Call(args, kwargs),
                          self.made_of_rows)

        step.arguments = arguments
        local = self.local(given, step.length, own)
        inside = set(self.adapter.layers.modules())
        # Keep position tables as the run on the whole sequence made them.
        with unchanged(m for m in entry.modules() if m not in inside), apart(
                ranks.rank, step.device):
            return self._ends.run(step, self.adapter.own_forward(entry), local)

    def whole(self, step: Step, given: dict[str, Any], own: Tensor
               ) -> dict[int, Call]:
        """Runs the model without its layers on the whole sequence, `given`.
        Returns, by layer index, the rows `own` of the layer's arguments."""
        noted: dict[int, Call] = {}
        cuts: dict[int, tuple[Tensor, Tensor]] = {}

        def note(index: int, _: Tensor, call: Call) -> None:
            noted[index] = rows_of(self.layers[index], step, own, cuts,
                                   self.stream.rows, call)
            if len(noted) == len(self.layers):
                raise Recorded

        zeros = in_every_place(
            self.adapter.decoder.get_input_embeddings(),
            self.adapter.entry.modules(),
            lambda table: whole_calls.zeros(table, self.expands))
        with torch.no_grad(), undisturbed(step.device), zeros, (
                self.noting(note)):
            with contextlib.suppress(Recorded):
                self.adapter.own_forward(self.adapter.entry)(**given)
        return noted

    def local(self, given: dict[str, Any], length: int, own: Tensor
               ) -> dict[str, Any]:
        """Returns a decoder's arguments for `own` rows and their positions."""
        name_of = type(self.adapter.entry).__name__
        local = {}
        for name, value in given.items():
            if isinstance(value, Tensor) and name in _INPUTS:
                dim = _INPUTS[name]
                if value.shape[dim] != 1 or length == 1:
                    value = value.index_select(dim, own)
            elif isinstance(value, Tensor) and value.dim() > 0:
                raise Unsupported(
                    name_of, f"argument '{name}' of shape "
                    f"{tuple(value.shape)} under a group: which rows of the "
                    "sequence it belongs to is not known", "leave it out")
            local[name] = value
        if local.get("position_ids") is None and (
                "position_ids" in self.accepts):
            local["position_ids"] = own[None]
        return local

    def noting(self, note: Callable) -> contextlib.AbstractContextManager:
        """Makes layers call `note` with their index, input and arguments."""
        layers = self.adapter.layers
        return in_place_of_layers(layers, [
            Noted(layer, self.stream.returns_tuple[self.layers[index]],
                  functools.partial(note, index))
            for index, layer in enumerate(layers)])
