"""Validates the arguments of public calls: `takes` declares the `Kind` of each
argument. A value of another kind is refused before the call begins, in one line
that names the call, the argument, the value and the allowed values."""
from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from sluice.base.errors import Invalid, Status

P = ParamSpec("P")
T = TypeVar("T")
NAME_CHARACTERS = 60  # longest text of a value in a message


class Kind(NamedTuple):
    """A set of allowed values: `has` tests a value, `said` names the set."""

    has: Callable[[Any], bool]
    said: str

    def __or__(self, other: Kind) -> Kind:
        return Kind(lambda value: self.has(value) or other.has(value),
                    f"{self.said}, or {other.said}")


def whole(least: int, said: str, most: int = 2**63 - 1) -> Kind:
    """Returns the kind of integers from `least` to `most`, without bools."""
    return Kind(lambda v: isinstance(v, int) and not isinstance(v, bool)
                and least <= v <= most, said)


def number(said: str, above: float = float("-inf"),
           most: float = float("inf"), least: float = float("-inf")) -> Kind:
    """Returns the kind of numbers > `above`, >= `least`, <= `most`, not NaN."""
    return Kind(lambda v: isinstance(v, (int, float))
                and not isinstance(v, bool) and above < v <= most
                and v >= least, said)


def one_of(*values: str) -> Kind:
    return Kind(lambda v: isinstance(v, str) and v in values,
                " or ".join(map(repr, values)))


def a(kind: Any, said: str) -> Kind:
    return Kind(lambda v: isinstance(v, kind), said)


NONE = Kind(lambda v: v is None, "None")
FLAG = a(bool, "True or False")
PATH = Kind(lambda v: isinstance(v, (str, os.PathLike)) and bool(os.fspath(v)),
            "a path")


def some(kind: Kind, said: str) -> Kind:
    return Kind(lambda v: isinstance(v, list) and bool(v)
                and all(map(kind.has, v)), said)


def mapping(of: Kind, said: str) -> Kind:
    return Kind(lambda v: isinstance(v, Mapping) and all(
        isinstance(name, str) and of.has(value) for name, value in v.items()),
        said)


def takes(call: str, **kinds: Kind) -> Callable[[Callable[P, T]],
                                                Callable[P, T]]:
    """Decorator: calls raise `Invalid` for an argument not of its `Kind`."""
    def around(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        assert kinds.keys() <= signature.parameters.keys(), call

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            given = signature.bind(*args, **kwargs).arguments
            for name in kinds.keys() & given.keys():
                need(call, name, given[name], kinds[name])
            return function(*args, **kwargs)

        return checked
    return around


def need(call: str, name: str, value: Any, kind: Kind) -> None:
    if not kind.has(value):
        raise invalid(f"{call}: {name} = {shown(value)}: {kind.said}")


def invalid(line: str) -> Invalid:
    return Invalid(Status.INVALID_ARGUMENT, line)


def shown(value: Any) -> str:
    """Formats a value; a tensor as dtype and shape, a module as its class."""
    torch = sys.modules.get("torch")  # a session does not need torch
    if torch is not None and isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape " \
               f"{tuple(value.shape)}"
    if torch is not None and isinstance(value, torch.nn.Module):
        return f"a {type(value).__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= NAME_CHARACTERS else (
        text[:NAME_CHARACTERS - 1] + "…")
