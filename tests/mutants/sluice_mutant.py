"""The switch of Python's mutants; see mutant.h."""

import os

_ON = int(os.environ.get("SLUICE_MUTANT", -1))
_FOLDER = os.environ.get("SLUICE_MUTANTS_REACHED", "")
_seen = set()


def on(number):
    if _FOLDER and number not in _seen:
        _seen.add(number)
        with open(os.path.join(_FOLDER, str(number)), "w", encoding="ascii"):
            pass
    return number == _ON
