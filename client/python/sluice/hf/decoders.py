"""Finds the decoder layers of a transformers model."""
from __future__ import annotations

from collections.abc import Callable

from torch import nn
from transformers import PreTrainedModel

from sluice.base.errors import Unsupported


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
    """Returns the models in the causal one that hold the decoder, outermost
    first."""
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
