"""What the planner says of a model, before any GPU is asked."""
from __future__ import annotations

import os
import pathlib
import subprocess

from sluice.arguments import PATH, a, takes
from sluice.daemon import find_programs
from sluice.errors import Error, Status

_TEXT = a(str, "as sluicectl plan train takes it, a text")


@takes("plan", folder=PATH, gpus=_TEXT, tokens=_TEXT, hardware=_TEXT)
def plan(folder: str | os.PathLike[str], gpus: str, tokens: str,
         hardware: str, *, compare: bool = False,
         as_json: bool = False) -> int:
    """Prints what `sluicectl plan train --engine python` says of the model of
    `folder`/config.json: whether it fits, how fast, with what settings.

    The cost model is of `stream(hidden="host")` under FSDP2. A shape that it
    does not know (experts, latent keys and values, windows) is refused by the
    field of config.json that says so; nothing is left out in silence.

    Returns: sluicectl's exit status: 0 it fits; 2 bad input or an unknown
        shape; 3 it does not fit.

    Raises:
        Error: no config.json there, or no sluicectl.
    """
    config = pathlib.Path(folder) / "config.json"
    if not config.is_file():
        raise Error(Status.NOT_FOUND, f"no config.json in {folder}: give the "
                    "folder that save_pretrained() wrote")
    words = [find_programs().need("sluicectl"), "plan", "train",
             "--engine", "python", "--model", str(config), "--hardware",
             hardware, "--gpus", gpus, "--seq-len", tokens]
    words += ["--compare"] * compare + ["--json"] * as_json
    return subprocess.run(words).returncode
