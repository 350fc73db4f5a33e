"""Whether a model that exists as a config can be streamed.

The model is made with random weights and no more layers than show each of its
kinds, so that a desk without the memory for its weights can ask.
"""
from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sluice.adapters.decoders import find_decoder
from sluice.arguments import PATH, invalid, takes
from sluice.captured import one_of_each_kind
from sluice.errors import Error, Status, Unsupported
from sluice.session import Session
from sluice.streaming import stream

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Patterns of window and full layers, of dense and expert layers, repeat within
# the first so many; where all are of one kind, the fewest will do.
MOST, LEAST = 8, 2


@dataclasses.dataclass(frozen=True)
class Verdict:
    model: str  # the class
    exact: bool
    said: str  # what was streamed, or why it was refused and what to do


@takes("probe", folder=PATH)
def verdict(folder: str | os.PathLike[str]) -> Verdict:
    """The verdict on the model whose config.json lies in `folder`.

    Raises:
        Error: no config there, or one that transformers cannot read.
    """
    import torch
    folder = pathlib.Path(folder)
    config = _config(folder)
    torch.manual_seed(0)
    with _reading(folder):
        model = _model(_shortened(config)).train()
    name = type(model).__name__
    with Session() as session:
        try:
            made = stream(model, session=session, quiet=True)
        except Unsupported as refused:
            return Verdict(name, False, str(refused))
        head = {"rows": "head and loss by rows", "none": "no head",
                "whole": "its head and loss run whole"}[made.head]
        made.unstream()
    probed = len(find_decoder(model)[1])
    layers = getattr(_text(config), "num_hidden_layers", probed)
    return Verdict(name, True, f"{probed} of its {layers} layers probed with "
                   f"random weights, {head}")


def _shortened(config: PretrainedConfig) -> PretrainedConfig:
    """With as few layers as show each of their kinds; the config itself where
    such a model cannot be made."""
    import torch
    try:
        with torch.device("meta"):
            decoder, layers = find_decoder(_model(config))
            seen = [*one_of_each_kind(layers),
                    *_firsts(getattr(_text(config), "layer_types", None)
                             or ())]
            short = _cut(config, min(MOST, max(LEAST, max(seen) + 1)))
            # Beside a tower of more layers another would be taken for it.
            if type(find_decoder(_model(short))[0]) is type(decoder):
                return short
    except Exception:  # a config with rules of its own
        pass
    return config


def _cut(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    config = copy.deepcopy(config)
    text = _text(config)
    text.num_hidden_layers = min(text.num_hidden_layers, layers)
    # Some have none, others make them of other fields.
    with contextlib.suppress(AttributeError, TypeError):
        text.layer_types = text.layer_types[:text.num_hidden_layers]
    return config


def _text(config: PretrainedConfig) -> PretrainedConfig:
    """The decoder's, of a model of text and pictures too."""
    return config.get_text_config(decoder=True)


def _firsts(values: Sequence[str]) -> list[int]:
    """Where each value is first met."""
    return [values.index(value) for value in set(values)]


def _model(config: PretrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_config(config)


def _config(folder: pathlib.Path) -> PretrainedConfig:
    from transformers import AutoConfig
    if not (folder / "config.json").is_file():
        raise Error(Status.NOT_FOUND, f"no config.json in {folder}: give the "
                    "folder that save_pretrained() wrote")
    with _reading(folder):
        return AutoConfig.from_pretrained(folder)


@contextlib.contextmanager
def _reading(folder: pathlib.Path) -> Iterator[None]:
    """What transformers makes nothing of in there, in one line."""
    try:
        yield
    except Exception as error:  # whatever such fields bring about
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise invalid(f"{folder}/config.json: {said[0]}") from error
