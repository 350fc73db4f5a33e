"""Threads that look at an object at intervals for as long as it is in use."""
from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Looks(Protocol):
    def look(self) -> None: ...


def start(looks: Looks, every_s: float, over: threading.Event, name: str
          ) -> threading.Thread:
    """Starts a thread that calls `looks.look()` every `every_s` seconds until
    `over` is set or nothing else refers to `looks`."""
    thread = threading.Thread(
        target=_keep_looking, name=name, daemon=True,
        args=(weakref.ref(looks), every_s, over))
    thread.start()
    return thread


def _keep_looking(looks: weakref.ref[Looks], every_s: float,
                  over: threading.Event) -> None:
    while not over.wait(every_s):
        alive = looks()
        if alive is None:
            return
        alive.look()
        del alive
