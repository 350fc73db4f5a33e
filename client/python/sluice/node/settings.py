"""Arguments of `stream`, and their validation."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import nn

from sluice.attention.gpu_blocks import Kernel
from sluice.base.argument_table import GROUP, MODULE
from sluice.base.arguments import (
    FLAG,
    NONE,
    a,
    mapping,
    need,
    number,
    one_of,
    some,
    whole,
)
from sluice.native.session import Session
from sluice.node.checked_chunks import Check

# Rows per chunk unless chosen. A GPU finishes 1024 rows before the host has
# issued the next chunk: 8192 rows through a layer of width 2048 took an H100
# 0.249 s in chunks of 1024, 0.040 s in one chunk (`throughput`, deploy/bundle).
AT_FIRST, AT_FIRST_ON_GPU = 1024, 8192


def rows_at_first(chunk: int | Literal["auto"] | None) -> int:
    return AT_FIRST if chunk is None or chunk == "auto" else chunk


@dataclass(frozen=True)
class StreamConfig:
    """How a model is streamed; `stream` documents these fields."""

    chunk: int | Literal["auto"] | None = None
    policy: str | Mapping[str, Mapping[str, float]] = "recompute"
    check: Check = "first"
    head: Literal["rows", "whole"] = "rows"
    group: dist.ProcessGroup | None = None
    hidden: Literal["device", "host"] = "device"
    rerun: float = 0
    kernel: Kernel = "auto"


# All arguments of `stream` except the model.
@dataclass(frozen=True)
class Fields(StreamConfig):
    layers: Iterable[nn.Module] | None = None
    attention: Literal["sdpa"] | None = None
    sample: Callable[[], object] | None = None
    session: Session | None = None
    batch: int = 1
    rows: Mapping[str, int | None] | None = None
    min_tokens: int = 0
    hbm: int | None = None
    stalled_s: float = 300.0
    quiet: bool = False

    @staticmethod
    def of(config: StreamConfig | None, given: dict[str, Any]) -> Fields:
        """Returns the fields in `given`, else the config's. Raises `Invalid`,
        or TypeError for an unknown name."""
        need("stream", "config", config, a(
            StreamConfig, "a sluice.StreamConfig") | NONE)
        made = Fields(**{**(vars(config) if config else {}), **given})
        for name, kind in KINDS.items():
            need("stream", name, getattr(made, name), kind)
        return made


HEAD = one_of("rows", "whole")
LAYERS = some(MODULE, "decoder layers, each a torch.nn.Module, one at least")
KINDS = {
    "layers": a(Iterable, "decoder layers, each a torch.nn.Module") | NONE,
    "attention": one_of("sdpa") | NONE,
    "sample": a(Callable, "what runs the model, as lambda: model(ids)") | NONE,
    "session": a(Session, "a sluice.Session") | NONE,
    "chunk": whole(1, "at least one row per chunk") | one_of("auto") | NONE,
    "batch": whole(1, "at least one sequence"),
    "rows": mapping(whole(-64, "", 63) | NONE, "a layer's argument and its "
                    "dimension that has rows, or None, as {'freqs_cis': 0}"
                    ) | NONE,
    "policy": one_of("recompute", "plan") | a(
        Mapping, "a mapping like {'mlp.*': {'keep': 0.25, 'swap': 0.5}}"),
    "check": one_of("first", "always", "off"),
    "min_tokens": whole(0, "tokens, 0 or more"),
    "head": HEAD,
    "group": GROUP | NONE,
    "hidden": one_of("device", "host"),
    "rerun": number("a part of the tokens, 0 to 1", least=0, most=1),
    "kernel": one_of("auto", "flash", "efficient", "cudnn"),
    "hbm": whole(0, "bytes, 0 or more") | NONE,
    "stalled_s": number("seconds, more than 0", above=0),
    "quiet": FLAG,
}
