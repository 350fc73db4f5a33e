"""Router logits, from which a causal model computes the loss that balances its
experts. `output_router_logits`, an argument or a field of the config, asks for
them.

transformers declares for a decoder which outputs of which modules are router
logits; in some models of transformers 4.57 the layers return them.
[Note: sides] in side_outputs describes how they get out of a streamed layer.
"""
from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base import argument_table
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Model
from sluice.hf.stand_in import Instead, in_place_of_layers
from sluice.node.calls import Call
from sluice.node.side_outputs import ASKED, Joined, Side
from sluice.node.step import Step
from sluice.proof.captured_calls import probe_tokens

NAME = "router_logits"
_OUT = ("leave it out, and set it to False in the config (of TRL's trainers: "
        "router_aux_loss_coef=0)")


def asked(decoder: nn.Module, given: dict[str, Any]) -> bool:
    return argument_table.wants(decoder, given, ASKED)


def answered_last(adapter: Model) -> bool:
    """Returns whether the decoder's router logits are its layers' last outputs.
    Runs the decoder, which must be unpatched, with stand-ins for its layers."""
    decoder, layers = adapter.decoder, adapter.layers
    if not all(ASKED in inspect.signature(type(layer).forward).parameters
               for layer in layers):
        return False
    said = [torch.zeros(1) for _ in layers]
    ids = probe_tokens(adapter)
    with torch.no_grad():
        try:
            with in_place_of_layers(layers, [
                    Instead(layer, lambda hidden_states, *_, more=more, **__: (
                        hidden_states, more))
                    for layer, more in zip(layers, said)]):
                found = decoder.forward(input_ids=ids, use_cache=False,
                                        **{ASKED: True})[NAME]
        except Exception:  # not a decoder as transformers has them
            return False
    return len(found) == len(said) and all(map(operator.is_, found, said))


def find(adapter: Model) -> dict[nn.Module, tuple[nn.Module, int]]:
    """Returns, for each layer with router logits, the module that returns them
    (a router, or the layer itself) and their index among its outputs. Raises
    `Unsupported` if these modules are not known."""
    decoder, layers = adapter.entry, adapter.layers
    name, routers = type(decoder).__name__, {}
    if adapter.logits_last and decoder is adapter.decoder:
        return {layer: (layer, -1) for layer in layers}
    recorder = (getattr(decoder, "_can_record_outputs", None) or {}).get(NAME)
    target = getattr(recorder, "target_class", None)
    if target is None or getattr(recorder, "layer_name", None):
        raise Unsupported(name, f"{ASKED}: it is not known which modules make "
                          "them", _OUT)
    for layer in layers:
        found = [m for m in layer.modules() if isinstance(m, target)]
        if len(found) > 1:
            raise Unsupported(name, f"{ASKED}: several routers in a layer",
                              _OUT)
        if found:
            routers[layer] = found[0], recorder.index
    if not routers:
        raise Unsupported(name, f"{ASKED}: no layer has a router", _OUT)
    return routers


def note(step: Step, adapter: Model) -> None:
    """Makes the step's layers record their router logits; raises as `find`."""
    for layer, (router, index) in find(adapter).items():
        step.sides[layer] = Side(layer, router, index, step.at_once(layer))


def asking(step: Step, layer: nn.Module, kwargs: dict[str, Any]
           ) -> dict[str, Any]:
    """Adds a request for router logits if the layer itself returns them."""
    side = step.sides.get(layer)
    return {**kwargs, ASKED: True} if side is not None and side.is_own else (
        kwargs)


def joined(step: Step, y: Tensor) -> Tensor:
    """Puts the recorded router logits into `step.noted`, joined to the autograd
    graph of y, the last layer's output. Returns y."""
    sides = [side for side in step.sides.values() if not side.is_silent]
    y, *noted = Joined.apply(sides, y, *(side.whole() for side in sides))
    step.noted = tuple(noted)
    return y


def answered(call: Call, step: Step, answer: Any, shape: torch.Size) -> Any:
    """Adds the requested router logits to the decoder's output; with a group
    those of all rows: each rank computes the whole sequence's loss."""
    if step.sides:
        noted, step.noted = step.noted, ()
        answer[NAME] = noted if call.own_rows is None or not noted else (
            _of_all_rows(call, noted, *shape[:2]))
    return answer


def _of_all_rows(call: Call, noted: Sequence[Tensor], batch: int, length: int
                 ) -> tuple[Tensor, ...]:
    """Returns the router logits of all rows: one collective for all layers."""
    widths = [n.shape[-1] for n in noted]
    own = torch.cat([n.reshape(batch, -1, w) for n, w in zip(noted, widths)],
                    -1)
    every = call.all_rows(own, length).split(widths, -1)
    return tuple(e.reshape(-1, w) if n.dim() == 2 else e
                 for n, e, w in zip(noted, every, widths))
