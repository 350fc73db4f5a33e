"""The switch of Python's mutants; see mutant.h. A mutant that is reached is
recorded with pytest's current case."""

import os

_ON = int(os.environ.get("SLUICE_MUTANT", -1))
_FOLDER = os.environ.get("SLUICE_MUTANTS_REACHED", "")
_seen = set()


def on(number):
    if _FOLDER:
        case = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        if (number, case) not in _seen:
            _seen.add((number, case))
            with open(os.path.join(_FOLDER, str(number)), "a",
                      encoding="utf-8") as file:
                file.write(case + "\n")
    return number == _ON
