"""Checks that what a model computes outside its layers is the same for a rank's
rows alone and among all rows ([Note: whole arguments] in dealing)."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sluice.base.errors import Unsupported
from sluice.base.precision import near
from sluice.base.randomness import Still
from sluice.hf.dealing import Dealing
from sluice.hf.whole_calls import Call, Place, leaves_of
from sluice.node.rows import leaf_of
from sluice.node.step import chunks_of
from sluice.ranks.groups import indices

# Largest difference relative to the norm, in fp32 and in half precision.
LIMIT, HALF_LIMIT = 1e-5, 2e-2

# Tensors from a run without layers, each with its dimension of rows, if any.
Made = dict[Place | str, tuple[Tensor, int | None]]


def check(dealing: Dealing, ids: Tensor, chunk: int) -> None:
    """Raises `Unsupported` if the model computes positions itself. Sets
    `made_of_rows`, `undealt` and `expands` of `dealing`."""
    given = {"input_ids": ids}
    all_ = _made(dealing, given)
    noted = _noted(dealing, given)
    dealing.made_of_rows = {
        place for place, (value, _) in all_.items()
        if not isinstance(place, str) and (
            value.requires_grad or not _near(noted.get(place), value))}
    different = _different(dealing, given, all_, chunk)
    if different:
        raise Unsupported(dealing.adapter.entry, f"{different} not the same "
                          "for a rank's rows with their positions as for the "
                          "whole sequence: the model makes positions of its "
                          "own", "do not use a group with this model")
    if "attention_mask" in dealing.accepts:
        given["attention_mask"] = torch.ones_like(ids)
        given["attention_mask"][:, -ids.shape[1] // 3:] = 0
        given["attention_mask"][:, :ids.shape[1] // 5] = 0
        different = _different(dealing, given, _made(dealing, given), chunk)
        if different:
            dealing.undealt["attention_mask"] = (
                f"{different} not the same for a rank's rows")


def _different(dealing: Dealing, given: dict[str, Any], all_: Made,
               chunk: int) -> str | None:
    """Returns a phrase such as "its output is" for the first result that
    differs between a rank's rows alone and all rows; None if none does."""
    ranks, length = dealing.stream.ranks, given["input_ids"].shape[1]
    chunks = chunks_of(length, chunk, ranks.size)
    for rank in range(ranks.size):
        own = indices(ranks.own(chunks, rank), given["input_ids"].device)
        part = _made(dealing, dealing.local(given, length, own))
        for place, (value, dim) in all_.items():
            if isinstance(place, str):
                what = f"{place} is"
            elif place in dealing.made_of_rows:
                what = f"argument '{place[1]}' of layer {place[0]} is"
            else:
                continue
            if dim is not None and value.shape[dim] == length:
                value = value.index_select(dim, own)
            if not _near(part.get(place, (None,))[0], value):
                return what
    return None


def _made(dealing: Dealing, given: dict[str, Any]) -> Made:
    found: Made = {}
    x = given["input_ids"]
    step = dealing.stream.begin(x.shape[1], x.device, dealing.adapter,
                                check=False, alone=True)

    def note(index: int, x: Tensor, call: Call) -> None:
        found.setdefault("the input of its layers", (x, 1))
        layer = dealing.layers[index]
        for place, leaf in leaves_of(index, layer, call):
            if isinstance(leaf, Tensor) and not step.is_marker(leaf):
                found[place] = leaf, leaf_of(
                    layer, place[1], leaf, step, step.length,
                    dealing.stream.rows).dim

    with torch.enable_grad(), Still(), step.engaged(), dealing.noting(note):
        out = dealing.adapter.own_forward(dealing.adapter.entry)(
            **given, use_cache=False)
    return {**found, "its output": (out[0], 1)}


def _noted(dealing: Dealing, given: dict[str, Any]) -> dict[Place, Any]:
    """Returns the arguments of `_made` as `Dealing.whole` records them."""
    x = given["input_ids"]
    step = dealing.stream.begin(x.shape[1], x.device, dealing.adapter,
                                check=False, alone=True)
    given, rows = {**given, "use_cache": False}, torch.arange(
        x.shape[1], device=x.device)
    with step.engaged():
        try:
            noted = dealing.whole(step, given, rows)
        except RuntimeError as error:  # the model writes into the embeddings
            if isinstance(error, Unsupported):
                raise
            dealing.expands = False
            noted = dealing.whole(step, given, rows)
    return {place: leaf for index, call in noted.items()
            for place, leaf in leaves_of(index, dealing.layers[index], call)}


def _near(found: Any, wanted: Tensor) -> bool:
    limit = HALF_LIMIT if wanted.dtype in (torch.float16, torch.bfloat16) else (
        LIMIT)
    return isinstance(found, Tensor) and near(found, wanted, limit)
