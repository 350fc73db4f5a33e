"""Decides which products of a layer are kept, swapped or recomputed. MEMO
(section 4.1) swaps a fraction alpha of each layer's tokens. Here, for each
matrix product, the last chunks, where backward begins, are kept on the device,
the chunks before them are swapped, and the first chunks are recomputed."""
from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluice.base.arguments import Kind, invalid, mapping, need, number

_ROUNDING = 1e-6
_PART = number("between 0 and 1, a part of the chunks", least=0, most=1)
_PARTS = mapping(
    Kind(lambda parts: isinstance(parts, Mapping)
         and parts.keys() <= {"keep", "swap"}, ""),
    "'recompute', 'plan', or parts of the chunks by weights' names, as "
    "{'mlp.*': {'keep': 0.25, 'swap': 0.5}}")


class Action(enum.Enum):
    """What happens to a product of one chunk until the chunk's replay."""

    RECOMPUTE = 0
    SWAP = 1  # to the host
    KEEP = 2  # on the device


@dataclass(frozen=True)
class Share:
    """Fractions of the chunks that are kept and swapped; all other chunks are
    recomputed. `keep` and `keep + swap` are rounded down to whole chunks."""

    keep: float = 0.0
    swap: float = 0.0

    def action(self, chunk: int, chunks: int) -> Action:
        kept = int(self.keep * chunks + _ROUNDING)
        stored = int((self.keep + self.swap) * chunks + _ROUNDING)
        if chunk >= chunks - kept:
            return Action.KEEP
        return Action.SWAP if chunk >= chunks - stored else Action.RECOMPUTE


@dataclass(frozen=True)
class Policy:
    """Shares by patterns of weight names within a layer (`fnmatch`: "mlp.*");
    the first that fits counts. With several kinds of layers, a plan's patterns
    begin with the kind: "LlamaDecoderLayer.0/mlp.up_proj.weight"."""

    shares: tuple[tuple[str, Share], ...] = ()

    @staticmethod
    def of(given: str | Mapping[str, Mapping[str, float]]) -> Policy:
        """Returns the policy given as `stream(policy=)`; raises `Invalid`."""
        if given == "recompute":
            return Policy()
        need("stream", "policy", given, _PARTS)
        return Policy(tuple((pattern, _share(pattern, parts))
                            for pattern, parts in given.items()))

    def check(self, names: Iterable[str]) -> None:
        """Raises `Invalid` if a pattern fits none of the layers' weights."""
        names = sorted(set(names))
        for pattern, _ in self.shares:
            if not any(_fits(name, pattern) for name in names):
                raise invalid(f"stream: policy: '{pattern}' fits no weight of "
                              f"the layers; there are: {', '.join(names)}")

    def of_kind(self, kind: str) -> Policy:
        own = kind + "/"
        return Policy(tuple(
            (pattern.removeprefix(own), share)
            for pattern, share in self.shares
            if "/" not in pattern or pattern.startswith(own)))

    def share(self, name: str) -> Share:
        return next((share for pattern, share in self.shares
                     if _fits(name, pattern)), Share())


def _fits(name: str, pattern: str) -> bool:
    """Returns whether the pattern fits the name of the weight or of a module
    around it: PEFT wraps modules, which makes a weight's name longer."""
    while name and not fnmatch.fnmatchcase(name, pattern):
        name = name.rpartition(".")[0]
    return bool(name)


def _share(pattern: str, parts: Mapping[str, float]) -> Share:
    for name, part in parts.items():
        need("stream", f"policy['{pattern}']: {name}", part, _PART)
    share = Share(**parts)
    need("stream", f"policy['{pattern}']: keep + swap",
         share.keep + share.swap, _PART)
    return share
