"""What `stream` may be told."""
from __future__ import annotations

AT_FIRST = 1024  # rows per chunk, until another size is found by measuring


def check(chunk: int, batch: int, check: str, head: str, hidden: str) -> None:
    """Raises `ValueError` for a value that is none."""
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk = {chunk!r}: at least one row per chunk, or "
                         "'auto'")
    if not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch = {batch!r}: at least one sequence")
    if check not in ("first", "always", "off"):
        raise ValueError(f"check = {check!r}: 'first', 'always' or 'off'")
    if head not in ("rows", "whole"):
        raise ValueError(f"head = {head!r}: 'rows' or 'whole'")
    if hidden not in ("device", "host"):
        raise ValueError(f"hidden = {hidden!r}: 'device' or 'host'")


__all__ = ["AT_FIRST", "check"]
