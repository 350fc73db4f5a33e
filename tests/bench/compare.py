"""The arithmetic of `./dev bench --against`: ratios, quartiles, a verdict.

A ratio says how many times worse the present tree is than the revision: 1.10 is
10 % more if lower values are better, and 1.10 times less if higher values are
better. Each round measures both trees and gives one ratio per row.
"""

import math

# A row has regressed if the median and the lower quartile of its ratios both
# exceed their limits.
MEDIAN_LIMIT = 1.05
LOWER_QUARTILE_LIMIT = 1.02
# Values up to this count as zero: a solver's tolerance has no meaningful ratio.
ZERO = 1e-7


def ratio(before, after, better):
    """Returns how many times worse `after` is than `before`. If either is at
    most ZERO, the ratio is infinite (worse), 0 (better) or 1 (unchanged).
    """
    if min(before, after) > ZERO:
        return after / before if better == "lower" else before / after
    if abs(after - before) <= ZERO:
        return 1.0
    worse = (after > before) == (better == "lower")
    return math.inf if worse else 0.0


def quantile(values, q):
    """Returns the quantile by linear interpolation, as numpy does; the values
    may be infinite."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = ordered[math.floor(place)]
    high = ordered[math.ceil(place)]
    if low == high or place == math.floor(place):
        return low
    return low + (place - math.floor(place)) * (high - low)


def summary(ratios):
    return {"median": quantile(ratios, 0.5), "lower": quantile(ratios, 0.25),
            "upper": quantile(ratios, 0.75)}


def regressed(ratios):
    found = summary(ratios)
    return (found["median"] > MEDIAN_LIMIT
            and found["lower"] > LOWER_QUARTILE_LIMIT)


def improved(ratios):
    """Returns whether the row got better, by the limits of `regressed`
    inverted."""
    found = summary(ratios)
    return (found["median"] < 1 / MEDIAN_LIMIT
            and found["upper"] < 1 / LOWER_QUARTILE_LIMIT)


def by_name(entries):
    """Returns {name: entry}; a name's second row is called "NAME (2)"."""
    rows = {}
    for entry in entries:
        name, count = entry["name"], 1
        while name in rows:
            count += 1
            name = f"{entry['name']} ({count})"
        rows[name] = entry
    return rows


class Comparison:
    """The rounds of one benchmark: the rows that each side wrote."""

    def __init__(self, bench):
        self.bench = bench
        self.rounds = []  # (revision's rows, present build's) of each round

    def add(self, before, after):
        self.rounds.append((by_name(before), by_name(after)))

    def rows(self):
        """Yields one row for each name that both sides wrote in at least one
        round."""
        names = {}  # in the order they were written
        for _, after in self.rounds:
            names.update(after)
        for name, entry in names.items():
            both = [(b[name]["value"], a[name]["value"])
                    for b, a in self.rounds if name in b and name in a]
            if not both:
                continue
            ratios = [ratio(b, a, entry["better"]) for b, a in both]
            yield {"bench": self.bench, "name": name, "unit": entry["unit"],
                   "better": entry["better"],
                   "before": [b for b, _ in both],
                   "after": [a for _, a in both],
                   "ratio": summary(ratios),
                   "verdict": ("SLOWER" if regressed(ratios)
                               else "faster" if improved(ratios) else "")}

    def incomplete(self):
        """Yields (name, number of rounds in which the revision wrote the row,
        the same for the present build) for each row missing in some round."""
        names = {}
        for sides in self.rounds:
            for side in sides:
                names.update(side)
        for name in names:
            counts = [sum(name in sides[i] for sides in self.rounds)
                      for i in (0, 1)]
            if min(counts) < len(self.rounds):
                yield (name, *counts)

    def suspicious(self):
        return any(row["verdict"] == "SLOWER" for row in self.rows())
