"""Finds changes to a model after stream(): new layers are refused; layers with
new hooks or modules inside are probed again."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from sluice.base.errors import Unsupported
from sluice.node.setting import forward_of, hooks_of

AGAIN = "unstream(), change the model, and stream it again"
# Attributes of modules that decide whether chunks are exact.
_DECIDE = "is_causal", "scale_grad_by_freq"


class Held:
    """Detects layers put into the model after stream(): they run unstreamed."""

    def __init__(self, layers: Iterable[nn.Module],
                 held: Callable[[], Iterable[nn.Module]]):
        self._layers, self._held = frozenset(layers), held

    @staticmethod
    def by(decoder: nn.Module, layers: nn.ModuleList) -> Held:
        owner, name = next((owner, name) for owner in decoder.modules()
                           for name, child in owner._modules.items()
                           if child is layers)
        return Held(layers, lambda: owner._modules[name])

    @staticmethod
    def of(layers: object) -> Held:
        """Returns a `Held` of `layers`; only torch's containers are checked."""
        if isinstance(layers, nn.ModuleDict):
            return Held(layers.values(), layers.values)
        return Held(layers, lambda: layers) if isinstance(
            layers, nn.ModuleList) else Held((), tuple)

    def check(self) -> None:
        """Raises `Unsupported` for a layer that is not, or cannot be, streamed.
        """
        for index, layer in enumerate(self._held()):
            if isinstance(layer, FullyShardedDataParallel):
                raise Unsupported(f"layer {index}", "it is sharded by FSDP1",
                                  "shard it by fully_shard, which is FSDP2")
            if layer not in self._layers and self._layers.isdisjoint(
                    layer.modules()):
                raise Unsupported(
                    f"layer {index} ({type(layer).__name__})", "it came after "
                    "sluice.stream, and is not streamed", AGAIN)


class Inside:
    """Detects changes of modules, hooks, instance forwards and attributes of
    _DECIDE since `take`. Ignores FSDP2's hooks, which run around all rows."""

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]):
        self._modules = modules
        self.take()

    @staticmethod
    def of(layers: Iterable[nn.Module]) -> Inside:
        """Watches modules inside layers: a layer's own hooks see all rows."""
        layers = list(layers)
        return Inside(lambda: (m for layer in layers
                               for m in layer.modules() if m is not layer))

    def take(self) -> None:
        self._then = self._now()

    def has_changed(self) -> bool:
        return self._now() != self._then

    def _now(self) -> list[tuple]:
        return [(module, *map(vars(module).get, _DECIDE), *forward_of(module),
                 *hooks_of(module)) for module in self._modules()]


def warn_of_hooks(layers: Iterable[nn.Module],
                  warn: Callable[[str], object]) -> None:
    for layer in layers:
        for name, module in layer.named_modules():
            if name and any(map(_is_a_users, hooks_of(module))):
                warn(f"'{name}' of {type(layer).__name__} has hooks: inside of "
                     "streamed layers they are called for each chunk of rows, "
                     "and again in backward; a hook of the layer itself is "
                     "called once per forward, with all rows")
                return


def refuse_values_of_calls(layers: Iterable[nn.Module]) -> None:
    """Raises `Unsupported` if hooks of PEFT's pass values of this call to
    adapters in layers: they count the rows of whole sequences, as aLoRA's do,
    or have an entry per sequence, which a probe does not."""
    for layer in layers:
        for name, module in layer.named_modules():
            for hook in hooks_of(module):
                if isinstance(hook, functools.partial) and (
                        hook.func.__module__.startswith("peft.")):
                    raise Unsupported(
                        f"'{name}' of {type(layer).__name__}", " and ".join(
                            hook.keywords) + ", which PEFT passes to its "
                        "adapters in each call", "train an adapter that needs "
                        "no such values (LoRA, not aLoRA or Poly)")


def _is_a_users(hook: Callable) -> bool:
    function = getattr(hook, "func", hook)  # the hook may be a partial
    where = getattr(function, "__module__", None) or ""
    return where.partition(".")[0] not in ("torch", "transformers", "sluice")


def check_base(causal: nn.Module, base: nn.Module, decoder: nn.Module) -> None:
    """Raises `Unsupported` if the head's `base` does not contain `decoder`."""
    if all(module is not decoder for module in base.modules()):
        raise Unsupported(causal, f"its {type(base).__name__} came after "
                          "sluice.stream, and is not streamed", AGAIN)
