"""Runs the plain model's step, with which the streamed step is compared.

The same tokens and labels pass through the model with eager attention and, if
the model has it, with SDPA. The difference of these two steps shows how well
conditioned each parameter's gradient is.
"""

from __future__ import annotations

import dataclasses

import torch

from . import configs, exceptions

ROWS, TOKENS = 2, 75
# Tokens are greater than padding, and smaller than the ids that a tiny
# configuration reserves.
FIRST_TOKEN, LAST_TOKEN = 3, 80


@dataclasses.dataclass
class Step:
    """One forward and backward: the loss, the gradients, and the buffers."""

    loss: float
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    draws: bool  # whether it drew random numbers


class Odd(Exception):
    """The plain model's loss or gradients are not finite, or all gradients are
    zero."""


def batch(left_out: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and labels, [2, 75]; rows have unequal label counts.

    `left_out` is "few" (a gap in row 0, the end of row 1) or "many" (a whole
    chunk of both rows, and all but 20 tokens of row 1).
    """
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(
        FIRST_TOKEN, LAST_TOKEN, (ROWS, TOKENS), generator=generator
    )
    labels = ids.clone()
    if left_out == "few":
        labels[0, 10:14] = -100
        labels[1, 60:] = -100
    else:
        labels[:, 16:34] = -100
        labels[1, :55] = -100
    return ids, labels


def step(
    model: torch.nn.Module, name: str, ids: torch.Tensor, labels: torch.Tensor
) -> Step:
    """Runs one forward and backward of `model`, with a fixed random seed."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    loss = model(**exceptions.arguments(name, ids, labels)).loss
    draws = not torch.equal(state, torch.get_rng_state())
    loss.backward()
    return Step(
        loss=float(loss.detach()),
        gradients={
            n: None if p.grad is None else p.grad.detach().clone()
            for n, p in model.named_parameters()
        },
        buffers={n: b.detach().clone() for n, b in model.named_buffers()},
        draws=draws,
    )


def norm(gradients: dict[str, torch.Tensor | None]) -> float:
    """Returns the norm of all gradients together."""
    squares = [float(g.double().norm()) ** 2 for g in gradients.values()
               if g is not None]
    return sum(squares) ** 0.5


def check(found: Step) -> None:
    """Raises Odd if a streamed step cannot be compared with this step."""
    total = norm(found.gradients)
    if not (total > 0 and total < float("inf")):
        raise Odd(f"plain gradients have norm {total}")
    if not abs(found.loss) < float("inf"):
        raise Odd(f"plain loss is {found.loss}")


def attentions(name: str) -> list[str]:
    """Returns the attentions that the plain model has: eager first, then SDPA.
    """
    try:
        configs.tiny(name, "sdpa")
    except (ValueError, ImportError):
        return ["eager"]
    return ["eager", "sdpa"]
