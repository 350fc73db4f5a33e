"""One run of what a decoder computes before its layers, or after them."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from sluice import chunked
from sluice.replay import Slot, slots

if TYPE_CHECKING:
    from sluice.adapters.ends import Ends
    from sluice.step import Step


class Left(NamedTuple):
    """What comes after the layers of one forward of the decoder."""

    ends: Ends
    step: Step  # knows what hidden states in the host stand for
    given: dict[str, Any]
    as_tuple: bool

    def rows(self, hidden: Tensor, rows: range) -> Tensor:
        """What the decoder answers of `hidden` [B, c, H], `rows` of the last
        layer's answer."""
        return self.ends.answer_of(self.given, rows, hidden, self.as_tuple)[
            "last_hidden_state"]

    def slots(self) -> list[Slot]:
        return [s for s in slots(self.ends.after) if s.parameter.requires_grad]

    def units(self) -> list[nn.Module]:
        return self.ends.after.units()


class FirstCall(chunked.ChunkedCall):
    """One run of what comes before the layers.

    It holds far less for each row than a layer does, and each forward of the
    decoder costs time of the host: where what it makes is on the device, it
    takes several chunks at once.
    """

    def __init__(self, ends: Ends, step: Step, given: dict[str, Any]):
        joined = None if step.hidden.in_host else [
            range(step.chunks[a].start, step.chunks[a:a + ends.together][
                -1].stop) for a in range(0, len(step.chunks), ends.together)]
        assert ends.before is not None
        super().__init__(step, ends.before, "what comes before the layers of "
                         + type(ends.decoder).__name__, joined)
        self._ends, self._given = ends, given

    def settle(self) -> None:
        """The decoder's own forward over all rows, which runs its modules once
        more, is over."""
        if self.keeps:
            self._setting.take_buffers()

    def compute(self, m: int, x: None, extra: list[Tensor]) -> Tensor:
        return self._ends.x_of(self._given, self.chunks[m])


class LastCall(chunked.ChunkedCall):
    """One run of what comes after the layers."""

    def __init__(self, ends: Ends, step: Step, given: dict[str, Any],
                 as_tuple: bool):
        assert ends.after is not None
        super().__init__(step, ends.after, "what comes after the layers of "
                         + type(ends.decoder).__name__)
        self._ends, self._given, self.as_tuple = ends, given, as_tuple
        self.answer: Any = None

    def compute(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        answer = self._ends.answer_of(self._given, self.chunks[m], x,
                                      self.as_tuple)
        y = answer["last_hidden_state"]
        if not self.replays:
            answer["last_hidden_state"] = None
            self.answer = answer
        return y
