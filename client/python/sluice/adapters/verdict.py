"""Whether a model that exists as a config can be streamed.

The model is made with random weights and one layer of each kind, so that a
desk without the memory for its weights can ask.
"""
from __future__ import annotations

import dataclasses
import os
import pathlib

from sluice.errors import Error, Status, Unsupported
from sluice.session import Session
from sluice.streaming import stream

# Layers of the model that is made: patterns of window and full layers, dense
# and expert layers repeat within it.
LAYERS = 8


@dataclasses.dataclass(frozen=True)
class Verdict:
    model: str  # the class
    exact: bool
    said: str  # what was streamed, or why it was refused and what to do


def verdict(folder: str | os.PathLike[str]) -> Verdict:
    """The verdict on the model whose config.json lies in `folder`.

    Raises:
        Error: no config there, or one that transformers cannot read.
    """
    import torch
    from transformers import AutoModelForCausalLM
    config = _config(pathlib.Path(folder))
    shown = config.num_hidden_layers
    config.num_hidden_layers = min(shown, LAYERS)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:config.num_hidden_layers]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).train()
    name = type(model).__name__
    with Session() as session:
        try:
            made = stream(model, session=session, quiet=True)
        except Unsupported as refused:
            return Verdict(name, False, str(refused))
        head = {"rows": "head and loss by rows", "none": "no head",
                "whole": "its head and loss run whole"}[made.head]
        made.unstream()
    return Verdict(name, True, f"{config.num_hidden_layers} of its {shown} "
                   f"layers probed with random weights, {head}")


def _config(folder: pathlib.Path):
    from transformers import AutoConfig
    if not (folder / "config.json").is_file():
        raise Error(Status.NOT_FOUND, f"no config.json in {folder}: give the "
                    "folder that save_pretrained() wrote")
    try:
        return AutoConfig.from_pretrained(folder)
    except (ValueError, KeyError, OSError) as error:
        raise Error(Status.INVALID_ARGUMENT, f"{folder}/config.json: "
                    f"{str(error).splitlines()[0]}") from error
