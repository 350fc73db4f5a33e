"""Records the attributes that a layer's forward depends on, and restores them
for the second forward (replay). Other changes are refused.

[Note: setting] Between a forward and its backward the user may evaluate the
model, choose or add another adapter of PEFT, add or remove a hook, or change a
scale by a schedule; autograd's graph would not be affected. So the replay sees
the plain attributes (numbers, names, lists and dictionaries of them), the
submodules and the hooks that the first forward saw. Parameters and buffers are
not copied; they must still have the same contents. A buffer that was replaced,
such as a rotary table that grows with a longer sequence, is restored like an
attribute. A parameter that was written counts as changed, and so does a module
that got another class or forward. Buffers may be written with equal contents,
as DDP does before each forward; so a hash of their contents is kept.
"""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from sluice.base import swapped
from sluice.base.argument_table import PLAIN
from sluice.base.hashing import fingerprint
from sluice.node.replay import Slot, Snapshot

TORCHS = frozenset(vars(nn.Module())) - {"training", "_is_full_backward_hook"}
# _HELD: attributes with a module's submodules and hooks; _OF_ALL: global hooks.
_HELD = [name for name, value in vars(nn.Module()).items() if isinstance(
    value, dict) and name not in ("_parameters", "_buffers")]
_ALL = nn.modules.module
_OF_ALL = [name for name, value in vars(_ALL).items() if name.startswith(
    "_global_") and isinstance(value, dict)]


class Setting:
    """The state that the replay of one call of a module must find unchanged.
    `written`: buffers (owner, name) that are restored elsewhere."""

    def __init__(self, module: nn.Module, found: Sequence[Slot],
                 written: Sequence[tuple[nn.Module, str]]):
        self._modules = list(module.modules())
        self._parameters = [(s, _Contents(s.parameter)) for s in found]
        self._written = written
        self.take()

    def take(self) -> None:
        """Records attributes and buffers as they are now, without the hooks of
        the module itself, which run once, around its forward."""
        root, *inside = self._modules
        self.attributes = [
            {**_attributes(root), **_copies(root, ("_modules",))},
            *({**_attributes(m), **_copies(m, _HELD)} for m in inside),
            _copies(_ALL, _OF_ALL)]
        self._forwards = [forward_of(m) for m in inside]
        self.take_buffers()

    def take_buffers(self) -> None:
        """Records the buffers. Called again if the model's forward may have
        replaced some since (a rotary table that grew)."""
        self._buffers = [
            (owner, name, buffer, _Contents(buffer, _sum(buffer)))
            for owner in self._modules
            for name, buffer in owner._buffers.items()
            if buffer is not None and (owner, name) not in self._written]

    def check(self) -> None:
        """Raises RuntimeError if something that is not restored was changed.
        Needs the stream's lock: backwards of other threads set aliases."""
        for owner, then in zip(self._modules[1:], self._forwards):
            if forward_of(owner) != then:
                self._refuse(owner, "forward")
        for slot, contents in self._parameters:
            if slot.name not in slot.owner._parameters or (
                    not contents.are_of(slot.parameter)):
                self._refuse(slot.owner, slot.name)
        for owner, name, buffer, contents in self._buffers:
            if name not in owner._buffers or not contents.are_of(buffer):
                self._refuse(owner, name)

    def _refuse(self, owner: nn.Module, name: str) -> NoReturn:
        root = self._modules[0]
        where = next((f" (in {path} of {type(root).__name__})" for path, module
                      in root.named_modules() if module is owner and path), "")
        raise RuntimeError(
            f"sluice: '{name}' of {type(owner).__name__} was changed in place, "
            f"or replaced, between forward and backward{where}: its gradient "
            "would be of another function; step the optimizer, and change "
            "weights and buffers, after all backwards")

    def take_rewritten(self) -> None:
        """From now on compares the contents, not versions, of parameters that
        the call has written. Adding torch's parametrizations, as PEFT does in
        each forward, writes a parameter with its own value."""
        self._parameters = [
            (slot, contents if contents.are_of(slot.parameter) else
             _Contents(slot.parameter, _sum(slot.parameter)))
            for slot, contents in self._parameters]

    def note_elsewhere(self) -> None:
        self._elsewhere = _elsewhere(self._modules)

    def changed_elsewhere(self) -> str:
        """Describes unrestored changes since `note_elsewhere`."""
        now = _elsewhere(self._modules)
        found = [f"{key[0]} was {then[:60]}, and is {now.get(key, 'gone')[:60]}"
                 for key, then in self._elsewhere.items()
                 if now.get(key, "gone") != then]
        return ", ".join(found[:3]) or (
            "no tensor, config, class or file of its modules has changed, so "
            "it reads a value from elsewhere, or is not deterministic")

    def in_place(self) -> contextlib.AbstractContextManager:
        """Within the block, the modules have the recorded state."""
        then = [(vars(module), name, value) for module, attributes in zip(
                    (*self._modules, _ALL), self.attributes)
                for name, value in attributes.items()]
        return swapped.items(
            *((now, name, value) for now, name, value in then
              if (name in _HELD or now is vars(_ALL)
                  or _is_plain(now.get(name, self))) and now[name] != value),
            *((owner._buffers, name, buffer)
              for owner, name, buffer, _ in self._buffers
              if owner._buffers[name] is not buffer))


@contextlib.contextmanager
def unchanged(modules: Iterable[nn.Module], contents: bool = True
              ) -> Iterator[None]:
    """Restores the modules' plain attributes, tensors and buffers on exit; with
    `contents` also the buffers' contents."""
    then = [(module, {**_attributes(module), **{
                name: value for name, value in vars(module).items()
                if isinstance(value, Tensor)}}, dict(module._buffers))
            for module in modules]
    kept = Snapshot([(module, name) for module, _, buffers in then
                     for name, buffer in buffers.items()
                     if buffer is not None]) if contents else None
    try:
        yield
    finally:
        for module, attributes, buffers in then:
            vars(module).update({
                name: value for name, value in attributes.items()
                if _differ(vars(module).get(name), value)})
            module._buffers.clear()
            module._buffers.update(buffers)
        if kept is not None:
            kept.restore(if_changed=True)


class _Contents:
    """Identifies a tensor's contents: storage, version, hash if made."""

    def __init__(self, tensor: Tensor, sum_: int | None = None):
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._version, self._sum = _version(tensor), sum_

    def are_of(self, tensor: Tensor) -> bool:
        # The same storage may have other memory: FSDP2 frees and refills it.
        if self._storage != StorageWeakRef(tensor.untyped_storage()):
            return False
        return self._version == _version(tensor) or (
            self._sum is not None and self._sum == _sum(tensor))


# By tensor: the version that was hashed, and its hash.
_sums: MutableMapping[Tensor, tuple[int | None, int]] = WeakIdKeyDictionary()


def _sum(tensor: Tensor) -> int | None:
    """Returns a hash of the bytes; None for a meta tensor or a subclass."""
    if tensor.is_meta or type(tensor) not in (Tensor, nn.Parameter):
        return None
    version, known = _version(tensor), _sums.get(tensor)
    if known is None or known[0] != version or version is None:
        known = _sums[tensor] = version, fingerprint(tensor)
    return known[1]


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _attributes(module: Any) -> dict[str, Any]:
    """Returns the plain attributes, with lists, dicts and sets copied."""
    return {name: value.copy() if isinstance(
                value, (list, dict, set)) else value
            for name, value in vars(module).items()
            if name not in TORCHS and _is_plain(value)}


def _elsewhere(modules: Iterable[nn.Module]) -> dict[tuple[str, int], str]:
    """Returns, as text, values that modules may read besides their plain
    attributes, parameters and buffers; by (name, id of the holder)."""
    found: dict[tuple[str, int], str] = {}
    holders: dict[int, tuple[str, Any]] = {}
    for module in modules:
        kinds = [c for c in type(module).__mro__ if c not in nn.Module.__mro__]
        holders |= {id(c): (f"the class {c.__name__}", c) for c in kinds}
        holders |= {id(f): (f"the file {f.__name__}", f) for f in (
            sys.modules.get(c.__module__) for c in kinds) if f is not None}
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                found[f"the tensor '{name}' of {type(module).__name__}",
                      id(module)] = (f"version {_version(value)} of one at "
                                     f"{id(value):#x}")
            elif name not in TORCHS and hasattr(value, "__dict__") and (
                    not isinstance(value, (nn.Module, type))):
                holders[id(value)] = type(value).__name__, value
    return found | {(f"'{name}' of {where}", id(holder)): repr(value) for where,
                    holder in holders.values() for name,
                    value in _attributes(holder).items()}


def _copies(of: Any, names: Iterable[str]) -> dict[str, dict]:
    return {name: vars(of)[name].copy() for name in names}


def hooks_of(module: nn.Module) -> tuple:
    """Returns a module's hooks without FSDP2's, which run around all rows."""
    return tuple(hook for hooks in (
        module._forward_pre_hooks, module._forward_hooks,
        module._backward_pre_hooks, module._backward_hooks)
        for hook in hooks.values() if not is_of_fsdp(hook))


def is_of_fsdp(hook: Any) -> bool:
    """Returns whether the hook gathers or frees weights."""
    return str(getattr(getattr(hook, "func", hook), "__module__", "")
               ).startswith("torch.distributed.")


def plain_class(module: nn.Module) -> type:
    return next(kind for kind in type(module).__mro__
                if not issubclass(kind, FSDPModule))


def forward_of(module: nn.Module) -> tuple[type, Any]:
    """Returns the class and the instance's forward, which decide what a call
    runs. A forward of Sluice's (patch, linears, fsdp_units) counts as none."""
    own = vars(module).get("forward")
    ours = str(getattr(own, "__module__", "")).startswith("sluice.")
    return plain_class(module), None if ours else own


def _differ(now: Any, then: Any) -> bool:
    return now is not then and (isinstance(now, Tensor) or isinstance(
        then, Tensor) or now != then)


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, set):
        return all(isinstance(v, PLAIN) for v in value)
    if type(value) is dict:
        return all(isinstance(v, PLAIN) for v in value.values())
    return isinstance(value, PLAIN)
