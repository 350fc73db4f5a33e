"""Twins of causal models (see [Note: twins] in twin).

A small twin has the first layers, up to the first layer of the last kind, and a
vocabulary of the tokens that trials use. It refuses to run modules outside
decoder and head (an image tower). If its trials fail, a whole twin is tried.
"""
from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from sluice.base.errors import Unsupported
from sluice.node.setting import plain_class
from sluice.proof.captured_calls import first_of_kind, refusing
from sluice.proof.twin import Hollow, Twin, fit_vocabulary

LEAST = 2  # fewest layers of a small twin, so that code between layers runs
TOKENS = 512  # vocabulary of a small twin; trials use ids below 500


class Parts(NamedTuple):
    causal: Any
    decoder: Any
    layers: nn.ModuleList
    is_small: bool = False


class Twins:
    """Makes twins of one model. `forwards` is passed to `Twin`."""

    def __init__(self, causal: nn.Module, decoder: PreTrainedModel,
                 layers: nn.ModuleList, forwards: Mapping[nn.Module, Any]):
        self._model = Parts(causal, decoder, layers)
        self._forwards = forwards
        self._modules = list(causal.modules())
        self._idle = {m for tower in self._modules if isinstance(
            tower, PreTrainedModel) and all(
                m is not decoder for m in tower.modules())
            for m in tower.modules()}
        weight = getattr(decoder.get_input_embeddings(), "weight", None)
        self._tokens = 0 if weight is None else weight.shape[0]
        self._fewest = min(len(layers), max(
            LEAST, max(first_of_kind(layers)) + 1))

    def sizes(self) -> Iterator[bool]:
        """Yields True if a small twin differs from a whole one, then False."""
        if self._idle or self._tokens > TOKENS or (
                self._fewest < len(self._model.layers)):
            yield True
        yield False

    @contextlib.contextmanager
    def made(self, small: bool, device: torch.device) -> Iterator[Parts]:
        """Yields a twin in train mode; call it within `probe.trying`. Frees the
        twin's weights on exit, because reference cycles would keep them."""
        parts = refusing(self._model.causal, "its twin cannot be made",
                         lambda: self._made(small, device))
        try:
            yield parts
        finally:
            for module in parts.causal.modules():
                module._parameters.clear()
                module._buffers.clear()

    def _made(self, small: bool, device: torch.device) -> Parts:
        known: dict[int, Any] = {}
        for module in self._modules:
            for value in list(vars(module).values()):
                if isinstance(value, PretrainedConfig):
                    copy.deepcopy(value, known)
        cut = (self._tokens, min(TOKENS, self._tokens)) if small else None
        for config in list(known.values()):
            if cut is not None and isinstance(config, PretrainedConfig):
                fit_vocabulary(config, cut)
        idle = self._idle if small else ()
        twin = Twin([self._model.causal], device, self._model.layers, known,
                    idle, cut, self._constructed, self._forwards)
        causal, decoder, layers, _ = self._model
        made = Parts(twin[causal], twin[decoder], twin[layers], small)
        twin.initialise(getattr(made.decoder, "_init_weights", bool))
        for module in idle:
            twin[module].register_forward_pre_hook(_refuse)
        for name in list(made.layers._modules)[
                self._fewest if small else len(made.layers):]:
            del made.layers._modules[name]
        made.causal.train()
        return made

    @functools.cached_property
    def _constructed(self) -> Any:
        """Maps a module of the model to the same module of a newly constructed
        model; None if no buffer is on `meta`."""
        causal = self._model.causal
        if not any(b.is_meta for b in causal.buffers()):
            return None
        with Hollow():
            model = plain_class(causal)(copy.deepcopy(causal.config))
        named = dict(model.named_modules())
        paths = {module: path for path, module in causal.named_modules()}
        return lambda module: named.get(paths[module])


def _refuse(module: nn.Module, args: Any) -> None:
    raise Unsupported(module, "a small twin has no such module")


def find_decoder(model: nn.Module) -> tuple[PreTrainedModel, nn.ModuleList]:
    """Returns the innermost model that runs the decoder layers, and the layers:
    the longest list of modules that each contain a module with a `layer_idx`
    or, failing that, of modules with children."""
    best = _longest_list(model, lambda item: any(
        hasattr(m, "layer_idx") for m in item.modules()))
    best = best or _longest_list(model, lambda item: any(item.children()))
    # The innermost PreTrainedModel makes the masks.
    name, layers = best or ("", nn.ModuleList())
    while name:
        name = name.rpartition(".")[0]
        decoder = model.get_submodule(name)
        if isinstance(decoder, PreTrainedModel):
            return decoder, layers
    raise Unsupported(model, "no list of decoder layers whose attention goes "
                      "through transformers' attention registry", "pass a "
                      "causal language model of transformers")


def around(decoder: nn.Module, causal: nn.Module) -> list[nn.Module]:
    """Returns the models between `causal` and the decoder, outermost first."""
    return [m for m in causal.modules()
            if isinstance(m, PreTrainedModel) and m is not causal
            and m is not decoder and any(d is decoder for d in m.modules())]


def _longest_list(model: nn.Module, is_layer: Callable[[nn.Module], bool]
                  ) -> tuple[str, nn.ModuleList] | None:
    best: tuple[str, nn.ModuleList] | None = None
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) == 0:
            continue
        if not all(map(is_layer, module)):
            continue
        if best is not None and name.startswith(best[0] + "."):
            continue  # e.g. the experts of a layer
        if best is None or len(module) > len(best[1]):
            best = (name, module)
    return best
