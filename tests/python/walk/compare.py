"""Measures how far a streamed step is from the plain step, by parameter.

A step is exact if for every parameter the difference of the gradients has a
norm of at most max(1e-5, 5 x the plain model's own difference) times the
gradient's norm. The plain model's own difference is the relative difference of
its gradients between eager attention and SDPA. A model without SDPA is compared
in fp32 and fp64, or, if it does not run in fp64, with weights that differ by
rounding. A parameter's gradient below 1e-6 of the norm of all gradients is
rounding, so its difference is compared with 1e-6 of the norm of all gradients.

The plain model's own difference is the larger one of two batches. It estimates
how well conditioned the parameter is. A gradient in which large sums nearly
cancel may differ by 4e-6 on one batch and by 1e-5 on the next.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from .plain import Step, norm

LEAST = 1e-5
# If all gradients together differ by more than this between two attentions,
# these do not only round differently: they compute different things (one of
# them ignores a window, for example). One small gradient may differ by more.
DISAGREE = 1e-3
TIMES_OWN = 5.0
NEGLIGIBLE = 1e-6


@dataclasses.dataclass
class Worst:
    """The parameter that comes closest to its limit, or exceeds it most.

    `difference` is relative to the gradient's norm (or to the norm of all
    gradients if this one is negligible). `ratio` is difference / limit: exact
    means <= 1.
    """

    name: str
    difference: float
    ratio: float

    def exceeds(self) -> bool:
        return self.ratio > 1.0


def _gap(a: torch.Tensor | None, b: torch.Tensor | None) -> tuple[float, float]:
    """Returns the norms of `a - b` and `a`, in fp64; a missing gradient is
    zero."""
    if a is None and b is None:
        return 0.0, 0.0
    if a is None:
        return float(b.double().norm()), 0.0
    if b is None:
        return float(a.double().norm()), float(a.double().norm())
    return float((a.double() - b.double()).norm()), float(a.double().norm())


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), 1e-30)


def own_differences(
    batches: list[dict[str, Step]],
) -> dict[str, float]:
    """Returns, per parameter and for "loss", the relative difference between
    the plain model's eager step and its other step: the largest over
    `batches`, each {attention: step}."""
    found: dict[str, float] = {}
    for steps in batches:
        eager = steps["eager"]
        other = next((step for name, step in steps.items()
                      if name != "eager"), eager)
        whole = norm(eager.gradients)
        gaps = {"loss": _relative(eager.loss, other.loss)}
        for name, gradient in eager.gradients.items():
            gap, size = _gap(gradient, other.gradients[name])
            gaps[name] = gap / size if size >= NEGLIGIBLE * whole else 0.0
        found = {n: max(gap, found.get(n, 0.0)) for n, gap in gaps.items()}
    return found


def apart(batches: list[dict[str, Step]]) -> float:
    """Returns the largest difference between all gradients of a batch's two
    steps, relative to the norm of the first one's."""
    found = 0.0
    for one, other in (steps.values() for steps in batches):
        gaps = (_gap(gradient, other.gradients[name])[0]
                for name, gradient in one.gradients.items())
        found = max(found, math.hypot(*gaps) / norm(one.gradients))
    return found


def worst(plain: Step, own: dict[str, float], streamed: Step) -> Worst:
    """Returns the loss or gradient of `streamed` that is worst compared with
    `plain`; `own` is the result of `own_differences`."""
    whole = norm(plain.gradients)
    gap = _relative(plain.loss, streamed.loss)
    found = Worst("loss", gap, _ratio(gap, _limit(own["loss"])))
    for name, gradient in plain.gradients.items():
        difference, size = _gap(gradient, streamed.gradients[name])
        if size < NEGLIGIBLE * whole:
            gap, limit = difference / whole, NEGLIGIBLE
        else:
            gap, limit = difference / size, _limit(own[name])
        if _ratio(gap, limit) > found.ratio:
            found = Worst(name, gap, _ratio(gap, limit))
    return found


def _ratio(gap: float, limit: float) -> float:
    """Returns gap / limit, and infinity for NaN, which would compare as small.
    """
    return math.inf if math.isnan(gap) else gap / limit


def _limit(own: float) -> float:
    return max(LEAST, TIMES_OWN * own)


def moved_buffer(plain: Step, streamed: Step) -> str | None:
    """Returns the name of a buffer that differs after the streamed step, or
    None."""
    for name, value in plain.buffers.items():
        other = streamed.buffers.get(name)
        if other is None or other.shape != value.shape:
            return name
        if not torch.allclose(
            value.double(), other.double(), rtol=1e-5, atol=1e-6,
            equal_nan=True,
        ):
            return name
    return None
