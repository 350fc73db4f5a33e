"""Randomly drawn training (draws.py) has the plain model's losses and
gradients, or is refused with an error that names the reason.

SLUICE_DRAWS=FIRST:COUNT chooses the draws. A failure contains the draw's
number, and `python draws.py --draw NUMBER` repeats the draw.
"""

from __future__ import annotations

import os
import warnings

import draws

FIRST, COUNT = map(int, os.environ.get("SLUICE_DRAWS", "0:12").split(":"))


def test_drawn_training_equals_the_plain_models():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the stream warns about hooks
        report = draws.run_all(range(FIRST, FIRST + COUNT))
    assert not report.failures, "\n".join(report.failures)
    # Otherwise a stream that refused every draw would pass.
    assert report.compared > 3 * report.refused, (report, report.said)


def test_a_gradient_that_is_silently_wrong_is_found(monkeypatch):
    """Simulates a stream in which one gradient is 1 % too large."""
    def wrong(trainee, step, threads):
        losses = right(trainee, step, threads)
        if threads:  # only for the streamed model
            next(p for p in trainee.base.parameters()
                 if p.grad is not None).grad.mul_(1.01)
        return losses

    right = draws.forwards_and_backwards
    monkeypatch.setattr(draws, "forwards_and_backwards", wrong)
    report = draws.run_all(range(2), say=lambda _: None)
    assert len(report.failures) == 2
    assert all("Mismatch" in each for each in report.failures)
