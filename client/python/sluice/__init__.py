"""Sluice: train language models on sequences that do not fit into GPU memory.

See client/python/README.md.
"""

from __future__ import annotations

from sluice.dealt import Shard, same_rows
from sluice.errors import Error, Invalid, Unsupported
from sluice.scoring import logprobs
from sluice.session import Session
from sluice.streaming import Stats, Stream, stream

__all__ = ["Error", "Invalid", "Session", "Shard", "Stats", "Stream",
           "Unsupported", "logprobs", "same_rows", "stream"]
