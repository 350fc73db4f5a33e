"""What `stream` may be told, one setting beside another."""
from __future__ import annotations

from sluice.errors import Unsupported

AT_FIRST = 1024  # rows per chunk, until another size is found by measuring


def check(chunk: int, check: str, head: str, hidden: str, has_group: bool,
          has_layers: bool) -> None:
    """Raises `ValueError` for a value that is none, `Unsupported` for two
    that do not go together yet."""
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk = {chunk!r}: at least one row per chunk, or "
                         "'auto'")
    if check not in ("first", "always", "off"):
        raise ValueError(f"check = {check!r}: 'first', 'always' or 'off'")
    if head not in ("rows", "whole"):
        raise ValueError(f"head = {head!r}: 'rows' or 'whole'")
    if hidden not in ("device", "host"):
        raise ValueError(f"hidden = {hidden!r}: 'device' or 'host'")
    if hidden == "host" and (has_group or has_layers):
        raise Unsupported(
            'hidden="host"', "layers without their model" if has_layers else
            "a sequence over several ranks", 'leave hidden="host" out')
    if has_group and has_layers:
        raise Unsupported("group", "a sequence over several ranks, of layers "
                          "without their model", "leave the group out")


__all__ = ["AT_FIRST", "check"]
