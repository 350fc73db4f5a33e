"""`sluice.AdamW`: torch's AdamW with its states in host memory.

[Note: master weights] A bf16 or fp16 parameter has an fp32 master in host
memory, which a step updates and rounds into the parameter. Where the
parameter's bits differ from the rounded master, the parameter is new or other
code has set it (weights were loaded, merged or averaged), and the step first
sets the master to the parameter. So a master needs no initial value, and
states of torch's AdamW, which has no masters, can be loaded.
"""
from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.adamw import adamw

from sluice.base.arguments import NONE, a, invalid, shown, takes
from sluice.base.errors import Error, Status, Unsupported
from sluice.memory.compute_device import check_device
from sluice.memory.host_states import HostStates, Piece, bytes_of
from sluice.native.session import Session

_STATES = ("exp_avg", "exp_avg_sq", "master")


class AdamW(torch.optim.AdamW):
    """AdamW with m, v and fp32 master weights in leased host memory.

    Host bytes per parameter of this rank: 8 for fp32, 12 for bf16 and fp16,
    which have masters. Device bytes: in `step()` at most two buckets of 64 MiB
    and temporaries of torch's foreach kernels; none between steps.

    `step()` gives fp32 parameters the bits of torch.optim.AdamW(foreach=True).
    Other parameters get the rounded result of the same update of masters. Work
    that is enqueued later on torch's current stream runs after the update. A
    parameter's states are leased in the first step in which it has a gradient.

    Reading `state` or calling `state_dict()` waits for copies. The states (CPU
    tensors, or DTensors of CPU tensors) are the leased memory itself and stay
    valid after the optimizer is deleted. Their names are torch's and "master".
    Set them by `load_state_dict` only.

    Args:
      params: parameters, named parameters or groups, as for torch's AdamW:
        float32, bfloat16 or float16, on the session's device. The local shards
        of DTensors are updated.
      lr, betas, eps, weight_decay: as for torch's AdamW; numbers, no tensors.
      amsgrad, maximize: refused if True.
      session: leases the host memory, computes the updates on its GPU, and must
        stay open. None: the optimizer opens one on the parameters' device.

    Raises:
      ValueError: torch's AdamW refuses a number.
      Unsupported: an option is not implemented; in `step()`: a parameter or
        gradient is not supported, or DistributedDataParallel replicates
        parameters (the message says how many bytes their states would take).
      Error: no daemon; in `step()` and `load_state_dict()` RESOURCE_EXHAUSTED:
        the states do not fit into the host memory that can be leased, and no
        parameter was changed.

    It cannot be pickled or copied. Thread safety: one thread at a time.
    """

    @takes("AdamW", session=a(Session, "a sluice.Session") | NONE)
    def __init__(self, params: Iterable, lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False, *,
                 maximize: bool = False, session: Session | None = None
                 ) -> None:
        self._views: dict[torch.Tensor, list[torch.Tensor]] = {}
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad,
                         maximize=maximize, foreach=True)
        self._states = HostStates(session or Session(device=next((
            p.device for group in self.param_groups for p in group["params"]
            if not p.is_meta), None)))

    @property
    def state(self) -> dict[torch.Tensor, dict[str, Any]]:
        """States by parameter, as of the last step; waits for copies."""
        if self._views:
            self._states.settle()
        return self._state

    @state.setter
    def state(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        self._state = state  # empty, from torch's constructor

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._check_options()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have gradients; see `AdamW`. First calls
        `closure`, if given, to compute the loss, and returns its result."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_options()
        groups = {p: group for group in self.param_groups
                  for p in group["params"] if p.grad is not None}
        self._lease(groups)
        for p in groups:
            if not self._state.get(p):
                self._set(p, {"step": 0.0})
        for pieces, states in self._states.stream(groups.__contains__):
            due = [each for each in zip(pieces, states)
                   if each[0].parameter in groups]
            for _, run in itertools.groupby(
                    due, lambda each: id(groups[each[0].parameter])):
                updates = list(run)
                self._update(updates, groups[updates[0][0].parameter])
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copies states of this class or of torch's AdamW into host memory.
        Raises ValueError if the groups or the parameters' shapes differ; then
        groups' options may have been loaded, but no states."""
        # torch casts state tensors to the parameters' device and dtype. So the
        # states are wrapped in functions, into which torch does not look.
        with self.register_load_state_dict_pre_hook(lambda _, given: {
                **given, "state": {key: functools.partial(dict, values) for
                                   key, values in given["state"].items()}}):
            super().load_state_dict(state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = {p: values() for p, values in state.pop("state").items()}
        given = {p: values for p, values in kept.items() if values}
        super().__setstate__(state)
        self._check_options()
        for p, values in given.items():
            _check_given(p, values)
        self._lease(given)
        self._state.clear()
        for p, values in given.items():
            self._set(p, values)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise Unsupported("AdamW", "its states are leased memory, which cannot "
                          "be pickled or copied", "make an AdamW of the copied "
                          "parameters, and load this one's state_dict()")

    def _lease(self, parameters: Collection[torch.Tensor]) -> None:
        for p in parameters:
            if p in self._views:
                _check_unchanged(_local(p, p), self._views[p])
        new = [(p, _local(p, p), _count(p)) for p in parameters
               if p not in self._views]
        if not new:
            return
        for _, local, _ in new:
            _check_parameter(local)
            check_device(local.device, self._states.device)
        _refuse_replicas([p for p, _, _ in new])
        try:
            leased = self._states.add(new)
        except Error as error:
            if error.status != Status.RESOURCE_EXHAUSTED:
                raise
            nbytes = sum(bytes_of(local, count) for _, local, count in new)
            raise Error(error.status, (
                f"AdamW: states of {sum(x.numel() for _, x, _ in new):,} "
                f"parameters take {_gib(nbytes)} of host memory: let the "
                "daemon lend more, or shard over more ranks: "
                f"{error.line}")) from error
        self._views.update((p, views) for (p, _, _), views in zip(new, leased))

    def _set(self, p: torch.Tensor, values: Mapping[str, Any]) -> None:
        """Sets a parameter's states to `values`; states that `values` lacks,
        such as the master, become 0: see [Note: master weights]."""
        self._states.settle()
        for name, view in zip(_STATES, self._views[p]):
            view.copy_(_local(values[name], p) if name in values else
                       torch.zeros(()))
        self._state[p] = {
            "step": torch.tensor(float(values["step"]), dtype=torch.float32),
            **{name: _as_sharded(view, p)
               for name, view in zip(_STATES, self._views[p])}}

    def _update(self, updates: list[tuple[Piece, list[torch.Tensor]]],
                group: Mapping[str, Any]) -> None:
        params, grads, steps, rounded = [], [], [], []
        for piece, (_, _, *masters) in updates:
            p = piece.parameter
            values = _flat(_local(p, p))[piece.start:piece.stop]
            for master in masters:
                _follow(master, values)
                rounded.append((values, master))
            params.append(masters[0] if masters else values)
            grads.append(_gradient(p)[piece.start:piece.stop].float())
            step = self._state[p]["step"]
            # adamw increments `step` for each piece; only the last one counts.
            steps.append(step if piece.last else step.clone())
        beta1, beta2 = group["betas"]
        adamw(params, grads, [states[0] for _, states in updates],
              [states[1] for _, states in updates], [], steps, foreach=True,
              amsgrad=False, beta1=beta1, beta2=beta2, lr=group["lr"],
              weight_decay=group["weight_decay"], eps=group["eps"],
              maximize=False)
        for values, master in rounded:
            values.copy_(master)

    def _check_options(self) -> None:
        for group in self.param_groups:
            for name in "amsgrad", "maximize", "capturable", "differentiable":
                if group.get(name):
                    raise Unsupported("AdamW", f"{name}=True is not supported",
                                      "leave it out, or take torch's AdamW")
            if isinstance(group["lr"], torch.Tensor):
                raise Unsupported("AdamW", "lr is a tensor, which torch's "
                                  "foreach kernels do not take",
                                  "pass a number")


def _count(p: torch.Tensor) -> int:
    return 2 if p.dtype == torch.float32 else 3


def _follow(master: torch.Tensor, values: torch.Tensor) -> None:
    """Sets `master` to `values` where `master` does not round to `values`."""
    same = master.to(values.dtype).view(torch.int16) == values.view(torch.int16)
    master.copy_(torch.where(same, master, values.float()))


def _local(tensor: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Returns this rank's values of `tensor`, sharded as `p` is."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    if tensor.placements != p.placements:
        tensor = tensor.redistribute(placements=p.placements)
    return tensor.detach().to_local()


def _as_sharded(view: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Returns `view`, a state of `p`; as a DTensor if `p` is one."""
    if not isinstance(p, DTensor):
        return view
    meta = p._spec.tensor_meta._replace(dtype=view.dtype)
    return DTensor(view, dataclasses.replace(p._spec, tensor_meta=meta),
                   requires_grad=False)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a dense tensor's values in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def _gradient(p: torch.Tensor) -> torch.Tensor:
    """Returns the gradient, flat, in the parameter's memory order."""
    if p.grad.layout != torch.strided:
        raise Unsupported("AdamW", "a sparse gradient",
                          "make the embedding with sparse=False")
    grad, local = _local(p.grad, p), _local(p, p)
    if grad.stride() != local.stride():
        grad = torch.empty_like(local, dtype=grad.dtype).copy_(grad)
    return _flat(grad)


def _check_parameter(local: torch.Tensor) -> None:
    if local.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise Unsupported("AdamW", shown(local),
                          "pass float32, bfloat16 or float16 parameters")
    if torch.empty_like(local, device="meta").stride() != local.stride():
        raise Unsupported("AdamW", f"{shown(local)} with gaps in its memory",
                          "make the parameter of a contiguous tensor")


def _check_unchanged(local: torch.Tensor, states: list[torch.Tensor]) -> None:
    if (local.shape, local.stride(), _count(local)) != (
            states[0].shape, states[0].stride(), len(states)):
        raise Unsupported("AdamW", f"{shown(local)}, which had another shape, "
                          "order in memory or precision when its states were "
                          "made", "make another AdamW, and load this "
                          "one's state_dict()")


def _check_given(p: torch.Tensor, values: Mapping[str, Any]) -> None:
    missing = {"step", *_STATES[:2]} - values.keys()
    if missing:
        raise invalid(f"load_state_dict: states without {min(missing)}: they "
                      "are not AdamW's")
    for name in _STATES:
        value = values.get(name, p)
        if (value.shape, isinstance(value, DTensor)) != (
                p.shape, isinstance(p, DTensor)):
            raise invalid(f"load_state_dict: {name} is {shown(value)}, its "
                          f"parameter {shown(p)}: they must have one shape, "
                          "and both or neither must be a DTensor")


def _refuse_replicas(parameters: Iterable[torch.Tensor]) -> None:
    if not (dist.is_available() and dist.is_initialized()):
        return
    ids = {id(p) for p in parameters}
    # A parameter does not show that DDP holds it, so search all DDP modules.
    for ddp in [each for each in gc.get_objects()
                if issubclass(type(each), DistributedDataParallel)]:
        ranks = dist.get_world_size(ddp.process_group)
        held = [p for p in ddp.parameters() if id(p) in ids]
        if ranks > 1 and held:
            nbytes = sum(bytes_of(p, _count(p)) for p in held)
            raise Unsupported("AdamW", (
                "DistributedDataParallel holds "
                f"{sum(p.numel() for p in held):,} parameters whole on each of "
                f"{ranks} ranks: their states would take {_gib(nbytes)} of "
                "host memory per rank, "
                f"{_gib(ranks * nbytes)} in all"), (
                "shard the model with fully_shard (FSDP2), then they take "
                f"{_gib(nbytes)} in all"))


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"
