"""Checks from a model's config whether the model can be streamed. The model is
on the meta device, so its weights need no memory."""
from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.base.arguments import PATH, invalid, takes
from sluice.base.errors import Error, Status, Unsupported
from sluice.hf.causal_twin import find_decoder
from sluice.native.session import Session
from sluice.proof.captured_calls import by_kind
from sluice.streaming import stream

if TYPE_CHECKING:
    from transformers import PretrainedConfig

@dataclasses.dataclass(frozen=True)
class Verdict:
    model: str  # class name
    exact: bool
    said: str  # what was streamed, or the reason of the refusal and a remedy


@takes("probe", folder=PATH)
def verdict(folder: str | os.PathLike[str]) -> Verdict:
    """Returns the verdict on the model of `folder`/config.json.

    Raises:
        Error: there is no config, or transformers cannot read it.
    """
    import torch
    from transformers import AutoModelForCausalLM
    folder = pathlib.Path(folder)
    config = _config(folder)
    with _reading(folder), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).train()
    name = type(model).__name__
    with Session() as session:
        try:
            made = stream(model, session=session, quiet=True)
        except Unsupported as refused:
            return Verdict(name, False, str(refused))
        head = {"rows": "head and loss by rows", "none": "no head",
                "whole": "its head and loss run whole"}[made.head]
        whole = sum(count for _, count in made.whole)
        made.unstream()
    layers = find_decoder(model)[1]
    return Verdict(name, True, f"{len(layers)} layers "
                   f"{f'({whole} run whole) ' if whole else ''}of "
                   f"{len(by_kind(layers))} kinds, tried with random weights, "
                   f"{head}")


def _config(folder: pathlib.Path) -> PretrainedConfig:
    from transformers import AutoConfig
    if not (folder / "config.json").is_file():
        raise Error(Status.NOT_FOUND, f"no config.json in {folder}: give the "
                    "folder that save_pretrained() wrote")
    with _reading(folder):
        return AutoConfig.from_pretrained(folder)


@contextlib.contextmanager
def _reading(folder: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a wrong config may raise any exception
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise invalid(f"{folder}/config.json: {said[0]}") from error
