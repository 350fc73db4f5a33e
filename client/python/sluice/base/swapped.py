"""Values that stand in the place of others for a while."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import Any

ABSENT = object()  # in the place of a value: the key has none


@contextlib.contextmanager
def items(*places: tuple[MutableMapping, Any, Any]) -> Iterator[None]:
    """Inside, each mapping has the value under the key. A module's children,
    parameters, buffers and attributes are such mappings."""
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
