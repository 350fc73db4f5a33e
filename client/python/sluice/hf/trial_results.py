"""Transfers the findings of a twin's trials to a model, by names and indices,
so that they also apply to other models with the same signature."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from sluice.base.model_protocols import WholeKind
from sluice.hf.dealing import Dealing
from sluice.hf.ends import Ends, Part
from sluice.node.streamed import Stream

WIDE = 4  # bytes of a number in trials, which are in fp32


def of_layers(mine: Stream, layers: Sequence[nn.Module], its: Stream,
              twins: Sequence[nn.Module], like: Callable[[int], int]) -> None:
    """Copies to the stream `mine` what trials in the stream `its` found for
    `layers`. `like` maps a layer's index to one of its kind in `twins`."""
    mine.rows = dict(its.rows)
    mine.attended |= its.attended
    kinds: dict[WholeKind, WholeKind] = {}
    for index, layer in enumerate(layers):
        twin = twins[like(index)]
        paths = {module: path for path, module in twin.named_modules()}
        mine.written[layer] = [(layer.get_submodule(paths[owner]), name)
                               for owner, name in its.written.get(twin, ())]
        mine.returns_tuple[layer] = its.returns_tuple.get(twin, False)
        for found, known in ((its.numbered, mine.numbered),
                             (its.carriers, mine.carriers)):
            (known.add if twin in found else known.discard)(layer)
        mine.whole_layers.pop(layer, None)
        kind = its.whole_layers.get(twin)
        if kind is not None:
            mine.whole_layers[layer] = kinds.setdefault(
                kind, _weighed(kind, layer))


def whole(mine: Stream, layers: Sequence[nn.Module],
          twins: Sequence[nn.Module]) -> dict[nn.Module, WholeKind]:
    """Returns twins of layers that run whole in `mine`, with their kinds."""
    kinds: dict[WholeKind, WholeKind] = {}
    return {twin: kinds.setdefault(kind, replace(kind))
            for layer, twin in zip(layers, twins)
            for kind in [mine.whole_layers.get(layer)] if kind is not None}


def _weighed(kind: WholeKind, layer: nn.Module) -> WholeKind:
    """Scales the bytes that were measured in fp32 to the layer's dtype."""
    weights = [p for p in layer.parameters() if p.is_floating_point()]
    size = max(weights, key=nn.Parameter.numel).dtype.itemsize if (
        weights) else WIDE
    share = min(1.0, size / WIDE)
    return replace(kind, bytes_per_token=round(share * kind.bytes_per_token),
                   bytes_per_pair=share * kind.bytes_per_pair)


def of_ends(mine: Ends, its: Ends) -> None:
    if its.before is None or its.after is None:
        return
    paths = {module: path for path, module in its.decoder.named_modules()}
    before, after = ([mine.decoder.get_submodule(paths[module])
                      for module in part.modules()]
                     for part in (its.before, its.after))
    mine.before, mine.after = Part(before, before[1:]), Part(after, before[1:])
    mine.modules = mine.outside()
    layers, twins = mine.adapter.layers, list(its.adapter.layers)
    mine.first = layers[twins.index(its.first)]
    mine.last = layers[twins.index(its.last) - len(twins)]
    mine.says_positions, mine.counts = its.says_positions, its.counts
    mine.takes, mine.together = set(its.takes), its.together


def of_dealing(mine: Dealing, its: Dealing, like: Callable[[int], int]) -> None:
    mine.made_of_rows = {
        (index, name, leaf) for index in range(len(mine.layers))
        for of, name, leaf in its.made_of_rows if of == like(index)}
    mine.undealt, mine.expands = its.undealt, its.expands
