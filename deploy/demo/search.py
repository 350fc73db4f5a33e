"""Finds the longest length that fits: doubles, then bisects to a sixteenth."""

STEPS = 16  # bisection ends at 1/16 of the last doubled length


def longest(fits, start, limit=1 << 22):
    """Doubles from `start` (or halves) until a length fits and its double does
    not; then bisects between the two in sixteenths. Returns (longest that fits
    or 0, shortest that does not fit or None). Calls `fits` at most once for
    each length."""
    known = {}

    def ask(length):
        if length not in known:
            known[length] = fits(length)
        return known[length]

    low = start
    while low >= 2 and not ask(low):
        low //= 2
    if low < 2:
        return 0, min(known)
    while low * 2 <= limit and ask(low * 2):
        low *= 2
    if low * 2 > limit:
        return low, None
    step = max(1, low // STEPS)
    good, bad = 0, -(-low // step)  # low + bad * step is refused
    while bad - good > 1:
        middle = (good + bad) // 2
        if ask(low + middle * step):
            good = middle
        else:
            bad = middle
    return low + good * step, low + bad * step
