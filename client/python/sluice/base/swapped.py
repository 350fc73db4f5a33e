"""Context managers that replace items and attributes temporarily."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import Any

ABSENT = object()  # as a value: the key is removed


@contextlib.contextmanager
def items(*places: tuple[MutableMapping, Any, Any]) -> Iterator[None]:
    """Sets `mapping[key] = value` for each (mapping, key, value), and restores
    the former values on exit."""
    before = [(held, key, held.get(key, ABSENT)) for held, key, _ in places]
    try:
        for place in places:
            _put(*place)
        yield
    finally:
        for place in reversed(before):
            _put(*place)


def attributes(of: Any, **values: Any) -> contextlib.AbstractContextManager:
    return items(*((vars(of), name, value) for name, value in values.items()))


def _put(held: MutableMapping, key: Any, value: Any) -> None:
    if value is ABSENT:
        held.pop(key, None)
    else:
        held[key] = value
