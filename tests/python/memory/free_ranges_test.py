"""The list of free host memory is consistent after an interrupt between any
two lines of its code."""

from __future__ import annotations

import contextlib
import sys

import pytest

import sluice
from sluice.memory.free_ranges import ALIGNMENT, FreeRanges


def interrupted_at(line, action):
    """Raises Ctrl-C before the `line`-th line that runs in the ranges' module.
    Returns False if fewer lines run."""
    left = [line]

    def trace(frame, event, _):
        if not frame.f_code.co_filename.endswith(
                "sluice/memory/free_ranges.py"):
            return None
        left[0] -= event == "line"
        if left[0] < 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("taking", [True, False])
def test_no_range_is_handed_out_twice_after_an_interrupt(taking):
    for line in range(200):
        free = FreeRanges()
        free.add_slab(0, 16 * ALIGNMENT)
        held = [free.take(ALIGNMENT)[0] for _ in range(8)]
        free.give(held.pop(3), ALIGNMENT, 1)
        free.give(held.pop(4), ALIGNMENT, 1)
        given = held.pop(3)  # the range between two free ranges
        if not interrupted_at(line, lambda free=free, given=given: (
                free.take(2 * ALIGNMENT) if taking else
                free.give(given, ALIGNMENT, 2))):
            break
        with contextlib.suppress(sluice.Error):
            while held:
                free.give(held.pop(), ALIGNMENT, 0)
            while (found := free.take(ALIGNMENT)) is not None:
                assert found[0] not in held, (line, found)
                held.append(found[0])
    else:
        raise AssertionError("every call was interrupted")
    assert line > 10
