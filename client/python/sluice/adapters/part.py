"""Some of a decoder's modules outside of its layers."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import nn
from torch.distributed.fsdp import FSDPModule

from sluice.adapters.held import Inside
from sluice.setting import unchanged


class Part:
    """The modules that one end runs: `owners`, the decoder first. What runs
    with it and is run over all rows too is `others`."""

    def __init__(self, owners: Sequence[nn.Module],
                 others: Sequence[nn.Module]):
        self._owners, self._others = owners, others
        self._inside = Inside(lambda: owners)

    def modules(self) -> Iterator[nn.Module]:
        return iter(self._owners)

    def units(self) -> list[nn.Module]:
        """Those that are FSDP2 units; see [Note: units]."""
        return [m for m in self._owners[1:] if isinstance(m, FSDPModule)]

    def has_changed(self) -> bool:
        """Whether hooks came to a module: they may count rows."""
        return self._inside.has_changed()

    def still(self) -> contextlib.AbstractContextManager:
        """What forwards on some rows leave in the modules is undone: rotary
        embeddings, say, remember the longest sequence they met."""
        return unchanged(self._others, contents=False)
