"""Logits of routers, which a causal model makes a loss of that balances its
experts: `output_router_logits`, as an argument or in the config.

transformers says of a decoder which outputs of which modules these are; see
[Note: sides] in side for how they get out of a streamed layer.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sluice.errors import Unsupported
from sluice.side import Joined, Side

if TYPE_CHECKING:
    from sluice.step import Step
    from sluice.streaming import Stream

ASKED, NAME = "output_router_logits", "router_logits"
_OUT = ("leave it out, and set it to False in the config (of TRL's trainers: "
        "router_aux_loss_coef=0)")


def asked(decoder: nn.Module, given: dict[str, Any]) -> bool:
    said = given.get(ASKED)
    return bool(getattr(decoder.config, ASKED, False) if said is None else
                said)


def find(decoder: nn.Module, layers: Iterable[nn.Module], shared: bool
         ) -> dict[nn.Module, tuple[nn.Module, int]]:
    """Of each layer that has one, the router, and which of its outputs its
    logits are. Raises `Unsupported` where that is not known, or where ranks
    share the rows."""
    name, routers = type(decoder).__name__, {}
    if shared:
        raise Unsupported(name, f"{ASKED} under a group: the loss is made of "
                          "the logits of all rows", _OUT)
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


def note(step: Step, decoder: nn.Module, layers: Iterable[nn.Module]) -> None:
    """The step's layers note their routers' logits; raises as `find`."""
    for layer, (router, index) in find(decoder, layers,
                                       step.ranks is not None).items():
        step.sides[layer] = Side(router, index, step.chunks)


def joined(step: Step, y: Tensor) -> Tensor:
    """Behind the last layer, which answered y; what was noted is then in
    `step.noted`."""
    sides = list(step.sides.values())
    y, *noted = Joined.apply(sides, y, *(side.whole() for side in sides))
    step.noted = tuple(noted)
    return y


def answered(step: Step, answer: Any) -> Any:
    """The decoder's answer, with the logits where they were asked for."""
    if step.sides:
        answer[NAME], step.noted = step.noted, ()
    return answer


__all__ = ["ASKED", "NAME", "answered", "asked", "find", "joined", "note"]
