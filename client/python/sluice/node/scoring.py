"""Computes `sluice.logprobs`: log-probabilities of given tokens, row by row.

DPO, GRPO and distillation need log p(token) of every row, and no logits. A
streamed model's head runs on chunks of rows in forward, and again, with
autograd, in backward: logits of one chunk exist at a time.
"""
from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sluice.base import swapped
from sluice.base.argument_table import IGNORED, MODULE, ROWS_OF_TOKENS, shifted
from sluice.base.arguments import FLAG, NONE, invalid, number, takes
from sluice.base.errors import Invalid
from sluice.base.precision import widened

_asking = threading.local()  # .asked: this thread's request, which heads read


# A request for log-probabilities in place of logits.
@dataclass
class Asked:
    targets: Tensor  # [B, S], IGNORED for rows without a target
    temperature: float
    entropy: bool
    largest: int  # the largest target
    answered: bool = False  # whether a streamed head has answered

    def of(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Returns [B, c, 1 or 2] in fp32 for logits [B, c, V] of some rows: log
        p of the targets [B, c], and the entropy if requested."""
        if self.largest >= logits.shape[-1]:
            raise invalid(f"logprobs: a target of {self.largest}: at most "
                          f"{logits.shape[-1] - 1}, the last logit's")
        logits = widened(logits)
        every = F.log_softmax(logits / self.temperature, dim=-1)
        targets = targets.to(logits.device)
        found = [every.gather(-1, targets.clamp(min=0)[..., None])]
        if self.entropy:
            # A logit of -inf adds 0.
            share = every.exp() * every.clamp(min=torch.finfo(every.dtype).min)
            found.append(-share.sum(dim=-1, keepdim=True))
        return torch.where((targets != IGNORED)[..., None],
                           torch.cat(found, dim=-1), 0.0)


def asked() -> Asked | None:
    """Returns what this thread requests instead of logits, if anything."""
    return getattr(_asking, "asked", None)


def wrong_shape(targets: Tensor, rows: torch.Size) -> Invalid:
    return invalid(f"logprobs: targets of shape {tuple(targets.shape)} for "
                   f"{tuple(rows)} rows")


@takes("logprobs", model=MODULE, labels=ROWS_OF_TOKENS | NONE,
       targets=ROWS_OF_TOKENS | NONE, entropy=FLAG,
       temperature=number("a number more than 0", above=0, most=1e30))
def logprobs(model: nn.Module, *, labels: Tensor | None = None,
             targets: Tensor | None = None, temperature: float = 1.0,
             entropy: bool = False, **inputs: Any
             ) -> Tensor | tuple[Tensor, Tensor]:
    """Returns log p of one token per row [B, S], in fp32, with gradients.

    With `labels`, row i of the result scores the token after row i of the
    inputs. TRL's `selective_log_softmax(logits[:, :-1], ids[:, 1:])` is
    `logprobs(model, input_ids=ids, labels=ids)[:, :-1]`.

    On a streamed model, also inside DDP, FSDP2 or PEFT, the head runs on
    chunks of rows and its input lies in host memory until backward; on other
    models, and if the stream's head is "whole", the result is computed from
    the model's logits.

    Args:
      model: a causal language model; called once, with `inputs`.
      labels: [B, S], as the model takes them: row i scores labels[:, i + 1].
      targets: [B, S], instead of labels: row i scores targets[:, i].
      temperature: divides the logits, after the model's own caps and scales.
      entropy: whether to return the entropy [B, S] of each row too.
      inputs: other arguments of the model: input_ids, position_ids, …

    Rows with the target -100 give 0, without a gradient.

    Raises:
      Invalid: not exactly one of labels and targets, or a value that is no
        token.
      Unsupported: the call of the streamed model is refused.
    """
    if (labels is None) == (targets is None):
        raise invalid("logprobs: pass labels or targets, and not both")
    if targets is None:
        targets = shifted(labels)
    least, largest = _extremes(targets)
    if least < 0:
        raise invalid(f"logprobs: a target of {least}: a token, 0 or more, or "
                      f"{IGNORED} for none")
    wanted = Asked(targets, temperature, entropy, largest)
    with swapped.attributes(_asking, asked=wanted):
        logits = model(**{"use_cache": False, **inputs}).logits
    if not wanted.answered and logits.shape[:2] != targets.shape:
        raise wrong_shape(targets, logits.shape[:2])
    found = logits if wanted.answered else wanted.of(logits, targets)
    return (found[..., 0], found[..., 1]) if entropy else found[..., 0]


def _extremes(targets: Tensor) -> tuple[int, int]:
    if targets.numel() == 0:
        return 0, 0
    tokens = targets.masked_fill(targets == IGNORED, 0)
    least, largest = torch.stack([tokens.min(), tokens.max()]).tolist()
    return least, largest
