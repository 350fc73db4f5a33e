"""Sluice: train language models on sequences that do not fit into GPU memory.

See client/python/README.md. Public names are imported on first use, so that
`python -m sluice --help` does not wait for torch.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.adamw import AdamW
    from sluice.base.errors import Error, Invalid, Unsupported
    from sluice.callback import SluiceCallback
    from sluice.native.session import Session
    from sluice.node.scoring import logprobs
    from sluice.node.settings import StreamConfig
    from sluice.node.streamed import Stats, Stream
    from sluice.ranks.shards import Shard, same_rows
    from sluice.streaming import of, stream, stream_layers, unstream

__all__ = ["AdamW", "Error", "Invalid", "Session", "Shard", "SluiceCallback",
           "Stats", "Stream", "StreamConfig", "Unsupported", "logprobs", "of",
           "same_rows", "stream", "stream_layers", "unstream"]
__version__ = "0.1.0"

_MODULES = {
    "AdamW": "adamw", "Error": "base.errors", "Invalid": "base.errors",
    "Session": "native.session", "Shard": "ranks.shards",
    "SluiceCallback": "callback", "Stats": "node.streamed",
    "Stream": "node.streamed", "StreamConfig": "node.settings",
    "Unsupported": "base.errors", "logprobs": "node.scoring",
    "of": "streaming", "same_rows": "ranks.shards", "stream": "streaming",
    "stream_layers": "streaming", "unstream": "streaming"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'sluice' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"sluice.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
