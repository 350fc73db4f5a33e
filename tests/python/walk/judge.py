"""Judges one name: runs its model plain, then streamed, and compares."""

from __future__ import annotations

import dataclasses
import time
import traceback

import torch

from . import compare, configs, exceptions, kinds, plain

BATCHES = ("few", "many")  # how many labels are left out
CHUNK = 16  # 75 tokens: four chunks and a tail of 11

# Verdicts. BUILT is the result of --plain-only.
EXACT, REFUSED, UNBUILT, BUILT = "exact", "refused", "unbuilt", "built"
WRONG, FAILED = "WRONG", "failed"
BAD = (WRONG, FAILED)


@dataclasses.dataclass
class Row:
    """The table's row of one name."""

    name: str
    model_class: str
    kind: str = ""
    verdict: str = FAILED
    worst: str = ""  # parameter (or "loss") with the largest `ratio`
    difference: float | None = None
    ratio: float | None = None  # difference / limit
    own: float | None = None  # the plain model's largest own difference
    blocks: int | None = None  # attention blocks that ran streamed
    # Which layers ran whole, and why; empty if all ran by chunks.
    whole: str = ""
    reason: str = ""
    remedy: str = ""
    streamed: bool = False  # whether sluice.stream() returned
    seconds: float = 0.0
    trace: str = ""


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def _fail(row: Row, where: str, error: BaseException) -> None:
    row.verdict = FAILED
    row.reason = one_line(f"{where}: {type(error).__name__}: {error}")[:400]
    row.trace = "".join(traceback.format_exception(error)[-12:])


def plain_steps(name: str, left_out: str) -> dict[str, plain.Step]:
    """Returns steps of the plain model by attention: eager, then SDPA. A model
    without SDPA has a step in fp64 before the eager step or, if some operators
    support only fp32, a step with weights that differ by rounding.

    Raises plain.Odd if the eager step cannot be compared with.
    """
    ids, labels = plain.batch(left_out)
    steps = {
        attention: plain.step(configs.tiny(name, attention), name, ids, labels)
        for attention in plain.attentions(name)
    }
    plain.check(steps["eager"])
    if "sdpa" in steps:
        return steps
    try:
        model = configs.tiny(name).double()
        return {"fp64": plain.step(model, name, ids, labels), **steps}
    except RuntimeError:
        model = configs.tiny(name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 2 ** -23)
        return {"rounded": plain.step(model, name, ids, labels), **steps}


def _plain(row: Row) -> dict[str, dict[str, plain.Step]]:
    """Returns the plain model's steps on both batches; sets `row.own`."""
    found = {left_out: plain_steps(row.name, left_out) for left_out in BATCHES}
    own = compare.own_differences(list(found.values()))
    row.own = max(own.values())
    return found


def yardstick(
    row: Row, steps: dict[str, dict[str, plain.Step]]
) -> tuple[dict[str, float], str]:
    """Returns the plain model's own differences, and the name of the attention
    to compare with: "eager".

    If the model's two attentions do not compute the same, returns differences
    of zero, and the attention that the streamed model is loaded with.
    """
    own = compare.own_differences(list(steps.values()))
    apart = compare.apart(list(steps.values()))
    if apart <= compare.DISAGREE:
        return own, "eager"
    one, other = list(next(iter(steps.values())))
    row.reason = f"held against {other.upper()}: {one} differs by {apart:.1g}"
    return dict.fromkeys(own, 0.0), other


def _stream_and_compare(
    row: Row, session: object, steps: dict[str, dict[str, plain.Step]]
) -> None:
    """Streams a new model on each of the two batches, and compares."""
    import sluice

    row.verdict = EXACT
    own, attention = yardstick(row, steps)
    worst = compare.Worst("", 0.0, -1.0)
    for left_out, expected in steps.items():
        model = configs.tiny(row.name, list(expected)[-1])
        reference = expected[attention]
        stream = sluice.stream(model, session=session, chunk=CHUNK)
        row.streamed = True
        found = plain.step(model, row.name, *plain.batch(left_out))
        stats, whole = stream.stats(), stream.whole
        stream.unstream()
        row.blocks = stats.blocks
        row.whole = _whole(model, whole)
        here = compare.worst(reference, own, found)
        if here.ratio > worst.ratio:
            worst = here
        moved = compare.moved_buffer(reference, found)
        # If no step was streamed, the plain model was compared with itself.
        if stats.steps == 0 or (stats.blocks == 0 and not whole
                                and row.kind != "state space"):
            row.verdict, row.reason = WRONG, "no attention block ran streamed"
        elif here.exceeds():
            row.verdict = WRONG
            row.reason = f"{here.ratio:.3g} x its limit ({left_out} left out)"
        elif moved:
            row.verdict, row.reason = WRONG, f"buffer {moved} differs"
        elif stats.host_bytes != 0:
            row.verdict = WRONG
            row.reason = f"{stats.host_bytes} host bytes held after the step"
    row.worst, row.difference = worst.name, worst.difference
    row.ratio = worst.ratio


def _whole(model: torch.nn.Module, kinds: list) -> str:
    if not kinds:
        return ""
    from sluice.hf.causal_twin import find_decoder

    layers = len(find_decoder(model)[1])
    whys = "; ".join(dict.fromkeys(
        kind.why + (" (S^2)" if kind.bytes_per_pair else "")
        for kind, _ in kinds))
    return one_line(f"{sum(n for _, n in kinds)} of {layers} layers whole: "
                    f"{whys}")


def judge(name: str, plain_only: bool) -> Row:
    """Returns the row of `name`. Never raises: an exception becomes a verdict.
    """
    row = Row(name=name, model_class=configs.class_name(name))
    began = time.monotonic()
    where = "plain"
    try:
        row.kind = kinds.kind_of(name)
        why = exceptions.unbuilt(name)
        if why:
            row.verdict, row.reason = UNBUILT, why
            return row
        steps = _plain(row)
        row.verdict = BUILT
        if not plain_only:
            where = "streamed"
            _streamed(row, steps)
    except Exception as error:  # the row contains the exception
        _fail(row, where, error)
    finally:
        row.seconds = round(time.monotonic() - began, 2)
    return row


def _streamed(row: Row, steps: dict[str, dict[str, plain.Step]]) -> None:
    import sluice

    try:
        with sluice.Session() as session:
            _stream_and_compare(row, session, steps)
    except sluice.Unsupported as refusal:
        # stream() must refuse a model before its training begins.
        row.verdict = FAILED if row.streamed else REFUSED
        late = "refused only in the step: " if row.streamed else ""
        row.reason = late + one_line(refusal)
        row.remedy = one_line(getattr(refusal, "remedy", ""))
        row.worst, row.difference, row.ratio = "", None, None
