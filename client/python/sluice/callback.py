"""`sluice.SluiceCallback`: streams a Trainer's model while it trains."""
from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback

from sluice.node.settings import StreamConfig
from sluice.streaming import of, stream, unstream


class SluiceCallback(TrainerCallback):
    """Streams a Trainer's model until `train()` ends, and adds to the
    Trainer's logs the peak of host bytes and the number of streamed forwards:
    `sluice_host_peak_bytes`, `sluice_steps`.

        Trainer(model, args, callbacks=[sluice.SluiceCallback(config)], …)

    The Trainer's constructor streams the model if it is not streamed yet,
    because accelerate may shard the model or wrap its forward later. A second
    `train()` streams it again. If training raises, the model stays streamed.

    Args:
      config, fields: arguments of `stream`; the Trainer's constructor raises
        the errors of `stream`.
    """

    def __init__(self, config: StreamConfig | None = None, **fields: Any):
        self._config, self._fields = config, fields

    def on_init_end(self, args: Any, state: Any, control: Any,
                    model: nn.Module, **_: Any) -> None:
        if of(model) is None:
            stream(model, self._config, **self._fields)

    on_train_begin = on_init_end

    def on_log(self, args: Any, state: Any, control: Any, model: nn.Module,
               logs: dict[str, Any], **_: Any) -> None:
        made = of(model)
        if made is not None:
            stats = made.stats()
            for told in (logs, state.log_history[-1]):
                told.update(sluice_host_peak_bytes=stats.host_peak_bytes,
                            sluice_steps=stats.steps)

    def on_train_end(self, args: Any, state: Any, control: Any,
                     model: nn.Module, **_: Any) -> None:
        unstream(model)
