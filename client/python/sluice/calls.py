"""What streamed forwards and backwards say about how they are called."""
from __future__ import annotations

import inspect
from typing import Any

# Of a node whose backward came before.
ONCE = ("sluice: the backward of a streamed model runs once; run its forward "
        "again instead of retain_graph=True")


class Standing:
    """Stands for a tensor that is never computed. A layer may hand it on
    (attention weights, mostly); nobody can use it."""


def arguments_of(signature: inspect.Signature, self_: Any, args: tuple,
                 kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of one call of a method by name, those of its **kwargs
    among them; without self and without defaults."""
    bound = signature.bind_partial(self_, *args, **kwargs).arguments
    given: dict[str, Any] = {}
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.name not in bound:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(bound[parameter.name])
        else:
            given[parameter.name] = bound[parameter.name]
    return given
