"""The arithmetic of `./dev bench --against`: ratios, quartiles, a verdict.

A ratio says how many times worse the present tree is than the revision it is
compared with, whichever way the row is read: 1.10 is 10 % slower, or 10 %
less where more is better. Every round measures both trees one after the
other and gives one ratio per row.
"""

import math

# A row has regressed when both are exceeded: one noisy round cannot do that.
MEDIAN_LIMIT = 1.05
LOWER_QUARTILE_LIMIT = 1.02
# What lies below this is taken as zero: a solver's tolerance has no ratio.
# No row's unit is so coarse that a figure that means something lies there.
ZERO = 1e-7


def ratio(before, after, better):
    """Infinite where the row left zero for the worse, 0 for the better: a
    figure at zero or below it has no quotient."""
    if min(before, after) > ZERO:
        return after / before if better == "lower" else before / after
    if abs(after - before) <= ZERO:
        return 1.0
    worse = (after > before) == (better == "lower")
    return math.inf if worse else 0.0


def quantile(values, q):
    """Linear between neighbours, as in numpy; infinite neighbours allowed."""
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
    """The mirror image of `regressed`."""
    found = summary(ratios)
    return (found["median"] < 1 / MEDIAN_LIMIT
            and found["upper"] < 1 / LOWER_QUARTILE_LIMIT)


def by_name(entries):
    """{name: entry}; a name's second row is "NAME (2)"."""
    rows = {}
    for entry in entries:
        name, count = entry["name"], 1
        while name in rows:
            count += 1
            name = f"{entry['name']} ({count})"
        rows[name] = entry
    return rows


class Comparison:
    """The rounds of one benchmark: what each side wrote, and the rows."""

    def __init__(self, bench):
        self.bench = bench
        self.rounds = []  # of (rows before, rows after)

    def add(self, before, after):
        self.rounds.append((by_name(before), by_name(after)))

    def rows(self):
        """One for every row that both sides wrote in at least one round."""
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
        """(name, rounds it has before, rounds it has after) of the rows that
        are not in every round of both sides."""
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
