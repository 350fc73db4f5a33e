"""Whether the layers that run are those that were streamed."""
from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from sluice.errors import Unsupported

AGAIN = "unstream(), change the model, and stream it again"


class Held:
    """The layers, where the model has them: one that is put there later would
    run unstreamed, on what stands for masks or for hidden states."""

    def __init__(self, layers: Iterable[nn.Module],
                 held: Callable[[], Iterable[nn.Module]]):
        self._layers, self._held = frozenset(layers), held

    @staticmethod
    def by(decoder: nn.Module, layers: nn.ModuleList) -> Held:
        """Where a decoder has its list of layers."""
        owner, name = next((owner, name) for owner in decoder.modules()
                           for name, child in owner._modules.items()
                           if child is layers)
        return Held(layers, lambda: owner._modules[name])

    @staticmethod
    def of(layers: object) -> Held:
        """What a user has streamed, where it is a container of torch's."""
        if isinstance(layers, nn.ModuleDict):
            return Held(layers.values(), layers.values)
        return Held(layers, lambda: layers) if isinstance(
            layers, nn.ModuleList) else Held((), tuple)

    def check(self) -> None:
        """Layers that are left out, or have something around them, are
        those of before."""
        for index, layer in enumerate(self._held()):
            if layer not in self._layers and self._layers.isdisjoint(
                    layer.modules()):
                raise Unsupported(
                    f"layer {index} ({type(layer).__name__})", "it came after "
                    "sluice.stream, and is not streamed", AGAIN)


def check_base(causal: nn.Module, base: nn.Module, decoder: nn.Module) -> None:
    """The base model that a head calls still holds the decoder."""
    if all(module is not decoder for module in base.modules()):
        raise Unsupported(
            type(causal).__name__, f"its {type(base).__name__} came after "
            "sluice.stream, and is not streamed", AGAIN)


__all__ = ["Held", "check_base"]
