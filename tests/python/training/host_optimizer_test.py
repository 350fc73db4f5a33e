"""Tests sluice.AdamW: its parameters and states are bit-identical to those of
torch's AdamW, its memory is bounded, and unsupported uses are refused."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import weakref

import loops
import pytest
import torch
import transformers
from conftest import HOST_BYTES
from models import batch, tiny
from support import Loaded
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import sluice
from sluice.base.errors import Status
from sluice.memory import host_states

HALVES = [torch.float32, torch.bfloat16, torch.float16]


def layers() -> nn.Module:
    """Returns layers of different sizes and layouts, some of them larger than a
    bucket of 4 KiB."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(33, 77), nn.Linear(77, 5, bias=False), nn.Embedding(7, 901),
        nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        nn.LayerNorm(1))


class Pair:
    """A model with sluice.AdamW, and its fp32 copy with torch's AdamW."""

    def __init__(self, session, dtype=torch.float32, groups=None, **options):
        self.model = layers().to(dtype)
        self.twin = copy.deepcopy(self.model).float()
        groups = groups or (lambda model: model.parameters())
        self.ours = sluice.AdamW(groups(self.model), session=session, **options)
        self.torchs = torch.optim.AdamW(groups(self.twin), foreach=True,
                                        **options)
        self._drawn = torch.Generator().manual_seed(5)

    def both(self):
        return zip(self.model.parameters(), self.twin.parameters(), strict=True)

    def step(self, without=(), dtype=None):
        for i, (p, twin) in enumerate(self.both()):
            drawn = torch.randn(p.shape, generator=self._drawn)
            p.grad = twin.grad = None
            if p.requires_grad and i not in without:
                p.grad = torch.empty_like(p).copy_(drawn)
                twin.grad = torch.empty_like(twin).copy_(p.grad)
        self.ours.step()
        self.torchs.step()

    def same(self):
        """Checks that parameters and states are bit-identical."""
        for p, twin in self.both():
            assert torch.equal(p, twin.to(p.dtype))
            found, expected = (
                optimizer.state.get(each, {}) for optimizer, each in
                ((self.ours, p), (self.torchs, twin)))
            for name, value in expected.items():
                assert torch.equal(found[name], value), name
            assert set(found) - {"master"} == set(expected)
            if "master" in found:
                assert torch.equal(found["master"], twin)


@pytest.fixture(params=[64 << 20, 4 << 10], ids=["64 MiB", "4 KiB"])
def bucket(request, monkeypatch):
    monkeypatch.setattr(host_states, "BUCKET_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_steps_are_torchs_to_the_bit(session, bucket, dtype):
    pair = Pair(session, dtype, lr=1e-2, weight_decay=0.1, betas=(0.3, 0.95))
    for _ in range(6):
        pair.step()
        pair.same()


def test_a_large_parameter_is_cut_into_parts_of_a_bucket(session, bucket):
    pair = Pair(session)
    pair.step()
    parts = [piece for bucket in pair.ours._states._buckets
             for piece in bucket.pieces]
    large = [piece for piece in parts
             if piece.parameter is pair.model[2].weight]
    assert len(large) == -(-7 * 901 // (bucket // 8))
    assert [piece.last for piece in large] == [
        False] * (len(large) - 1) + [True]
    assert all(each.nbytes <= bucket for each in pair.ours._states._buckets)


def test_groups_and_schedulers_change_no_bit(session):
    def groups(model):
        return [dict(params=list(model[:2].parameters()), weight_decay=0.0),
                dict(params=list(model[2:].parameters()), lr=3e-3,
                     betas=(0.8, 0.9))]

    pair = Pair(session, groups=groups, lr=1e-2)
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 10)
                  for each in (pair.ours, pair.torchs)]
    frozen = [pair.model[0].weight, pair.twin[0].weight]
    for p in frozen:
        p.requires_grad_(False)
    for i in range(6):
        if i == 3:  # the frozen parameters are trained from here on
            for p in frozen:
                p.requires_grad_(True)
        pair.step(without={2} if i % 2 else {3})
        for scheduler in schedulers:
            scheduler.step()
        pair.same()
    more = [nn.Parameter(torch.full((5,), 0.5)) for _ in range(2)]
    for optimizer, p in zip((pair.ours, pair.torchs), more):
        optimizer.add_param_group(dict(params=[p], lr=0.1))
        p.grad = torch.arange(5.0)
    pair.step()
    pair.same()
    assert torch.equal(*more)


def test_gradients_may_have_another_layout_and_dtype(session):
    pair = Pair(session)
    for p, twin in pair.both():
        grad = torch.randn(p.shape[::-1]).permute(*range(p.dim() - 1, -1, -1))
        p.grad, twin.grad = grad, grad.clone()
    pair.ours.step()
    pair.torchs.step()
    pair.same()
    half = Pair(session, torch.bfloat16)
    half.step()
    # Gradients of bf16 weights in a wider type.
    if hasattr(torch.Tensor, "grad_dtype"):
        for p, twin in half.both():
            p.grad = None
            p.grad_dtype = torch.float32
            p.grad = torch.randn_like(p, dtype=torch.float32)
            twin.grad = p.grad.clone()
        half.ours.step()
        half.torchs.step()
        half.same()


def test_a_closure_is_run_with_gradients(session):
    p = nn.Parameter(torch.ones(3))
    optimizer = sluice.AdamW([p], session=session)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3
    assert p.grad.tolist() == [2, 2, 2] and (p < 1).all()
    optimizer.zero_grad()
    assert p.grad is None
    assert optimizer.step() is None


def test_weights_set_by_the_user_replace_their_masters(session):
    pair = Pair(session, torch.bfloat16)
    pair.step()
    with torch.no_grad():
        for p, twin in pair.both():
            p[::2] *= 3
            twin[::2] = p[::2].float()
    pair.step()
    pair.same()


# --- states ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES[:2], ids=str)
@pytest.mark.parametrize("through_file", [False, True])
def test_optimizers_continue_from_saved_states(session, bucket, dtype,
                                               through_file):
    """torch's AdamW loads the states of sluice.AdamW. In fp32 sluice.AdamW
    loads torch's states, too."""
    pair = Pair(session, dtype, lr=1e-2)
    for _ in range(3):
        pair.step()

    def kept(optimizer):
        if not through_file:
            return copy.deepcopy(optimizer.state_dict())
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        return torch.load(file)

    of_torch, of_ours = kept(pair.torchs), kept(pair.ours)
    assert of_torch["param_groups"] == of_ours["param_groups"]
    pair.ours = sluice.AdamW(pair.model.parameters(), session=session)
    pair.ours.load_state_dict(of_torch if dtype == torch.float32 else of_ours)
    pair.torchs = torch.optim.AdamW(pair.twin.parameters())
    pair.torchs.load_state_dict(of_ours)
    for _ in range(2):
        pair.step()
        for p, twin in pair.both():
            assert torch.equal(p, twin.to(p.dtype))


def test_a_state_without_masters_begins_at_the_weights(session):
    """The loaded state is torch's for bf16 weights: it has no masters, and
    moments in bf16."""
    model = layers().bfloat16()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2),
                  sluice.AdamW(model.parameters(), session=session)]
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizers[0].step()
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    twin = copy.deepcopy(model).float()
    expected = torch.optim.AdamW(twin.parameters(), foreach=True)
    expected.load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for p, other in zip(model.parameters(), twin.parameters()):
        other.grad = p.grad.float()
    for optimizer in optimizers[1], expected:
        for group in optimizer.param_groups:
            group["foreach"] = True
        optimizer.step()
    for p, other in zip(model.parameters(), twin.parameters()):
        assert torch.equal(p, other.bfloat16())


def test_an_optimizer_can_load_its_own_state(session):
    pair = Pair(session, torch.bfloat16)
    pair.step()
    pair.ours.load_state_dict(pair.ours.state_dict())
    pair.step()
    pair.same()


def test_a_cleared_state_starts_at_step_one(session):
    pair = Pair(session)
    pair.step()
    for optimizer in pair.ours, pair.torchs:
        optimizer.state.clear()
    pair.step()
    pair.same()
    assert pair.ours.state[pair.model[0].weight]["step"] == 1
    pair.ours.load_state_dict({**pair.ours.state_dict(), "state": {}})
    assert not pair.ours.state


def test_states_of_distributed_checkpoints_are_exact(session):
    pair = Pair(session, lr=1e-2)
    for _ in range(2):
        pair.step()
    for options in (StateDictOptions(),
                    StateDictOptions(flatten_optimizer_state_dict=True),
                    StateDictOptions(full_state_dict=True, cpu_offload=True)):
        kept = [copy.deepcopy(get_optimizer_state_dict(
            model, optimizer, options=options)) for model, optimizer in
            ((pair.model, pair.ours), (pair.twin, pair.torchs))]
        pair.ours = sluice.AdamW(pair.model.parameters(), session=session)
        pair.torchs = torch.optim.AdamW(pair.twin.parameters(), foreach=True)
        for optimizer in pair.ours, pair.torchs:
            # Otherwise torch creates no states to load into.
            optimizer.zero_grad()
        set_optimizer_state_dict(pair.model, pair.ours, kept[1],
                                 options=options)
        set_optimizer_state_dict(pair.twin, pair.torchs, kept[0],
                                 options=options)
        pair.step()
        pair.same()


def test_a_state_of_other_parameters_is_refused_and_changes_nothing(session):
    pair = Pair(session)
    pair.step()
    state = pair.ours.state_dict()
    for name, value, said in (
            ("exp_avg", torch.ones(2, 3), r"exp_avg is a float32 tensor of "
             r"shape \(2, 3\), its parameter a float32 tensor of shape "
             r"\(77, 33\): they must have one shape"),
            ("exp_avg_sq", None, "states without exp_avg_sq")):
        given = {**state["state"][0], name: value}
        if value is None:
            del given[name]
        with pytest.raises(sluice.Invalid, match=said):
            pair.ours.load_state_dict({**state, "state": {
                **state["state"], 0: given}})
    pair.same()


# --- memory ------------------------------------------------------------------


@pytest.mark.parametrize("dtype, each", [(torch.float32, 8),
                                         (torch.bfloat16, 12)], ids=str)
def test_host_bytes_are_those_of_the_readme(daemon, session, dtype, each):
    def leased():
        with sluice.Session(daemon.socket, job="asks") as other:
            limits = other.limits()
            return limits.host_total_bytes - limits.host_free_bytes

    elements = 3 << 20
    p = nn.Parameter(torch.ones(elements, dtype=dtype))
    optimizer = sluice.AdamW([p], session=session)
    assert leased() == 0
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert leased() == each * elements
    state = optimizer.state[p]["exp_avg"]
    del optimizer
    gc.collect()
    assert leased() == each * elements  # `state` still refers to the memory
    del state
    gc.collect()
    assert leased() == 0


def test_at_most_two_buckets_are_on_the_device(session, monkeypatch):
    monkeypatch.setattr(host_states, "BUCKET_BYTES", 4096)
    held = []
    cut = host_states._cut

    def counted(bucket, buffer):
        held.append(weakref.ref(buffer))
        alive = {id(each()) for each in held if each() is not None}
        assert len(alive) <= 2 and bucket.nbytes <= buffer.nbytes <= 4096
        return cut(bucket, buffer)

    monkeypatch.setattr(host_states, "_cut", counted)
    pair = Pair(session)
    for _ in range(2):
        pair.step()
        assert len(held) > 10 and all(each() is None for each in held)
        assert not any(direction.held for direction in
                       pair.ours._states._copies.in_flight)


def test_states_that_do_not_fit_are_refused_before_any_step(session):
    model = nn.Linear(HOST_BYTES // 8 // 1024 + 1, 1024, bias=False)
    before = model.weight.detach().clone()
    optimizer = sluice.AdamW(model.parameters(), session=session)
    model.weight.grad = torch.ones_like(model.weight)
    with pytest.raises(sluice.Error, match="AdamW: states of 33,555,456 "
                       "parameters take 0.25 GiB of host memory: let the "
                       "daemon lend more.*: ") as refused:
        optimizer.step()
    assert refused.value.status == Status.RESOURCE_EXHAUSTED
    assert torch.equal(model.weight, before) and not optimizer.state
    model.weight = nn.Parameter(model.weight[:10].detach().clone())
    optimizer.add_param_group(dict(params=[model.weight]))
    optimizer.param_groups[0]["params"][0].grad = None
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()


def test_a_step_works_after_a_failed_step(session, monkeypatch):
    monkeypatch.setattr(host_states, "BUCKET_BYTES", 4096)
    pair = Pair(session)
    pair.step()

    def fail(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("sluice.adamw.adamw", fail)
        for p in pair.model.parameters():
            p.grad = torch.ones_like(p)
        with pytest.raises(KeyboardInterrupt):
            pair.ours.step()
    pair.same()
    pair.step()
    pair.same()


# --- ends --------------------------------------------------------------------


def test_states_stay_readable_after_the_session(daemon):
    with sluice.Session(daemon.socket) as session:
        pair = Pair(session)
        pair.step()
    pair.same()
    assert len(pickle.dumps(pair.ours.state_dict())) > 1000
    with pytest.raises(sluice.Error, match="session of these states is closed"):
        pair.step()


def test_a_forked_child_gets_a_clear_error(session):
    pair = Pair(session)
    pair.step()
    child = os.fork()
    if child == 0:
        try:
            for call in pair.ours.step, pair.ours.state_dict:
                with pytest.raises(sluice.Error, match="forked child"):
                    call()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    pair.step()
    pair.same()


@pytest.fixture(scope="module")
def loaded():
    loaded = Loaded("torch", "sluice.adamw")
    yield loaded
    loaded.close()


@pytest.mark.parametrize("last", [
    "", "del optimizer; gc.collect()",
    "state = optimizer.state_dict(); del optimizer; gc.collect()\n"
    "    assert state['state'][0]['step'] == 2",
    "iterator = optimizer._states.stream(lambda p: True); next(iterator)",
    "if os.fork() == 0: sys.exit(0)\n    os.wait()"])
def test_no_end_of_the_process_crashes_or_hangs(loaded, last):
    ran = loaded.run_code("""
    import gc, os, sluice, sys, torch
    p = torch.nn.Parameter(torch.ones(1 << 20))
    optimizer = sluice.AdamW([p])
    for _ in range(2):
        p.grad = torch.ones_like(p)
        optimizer.step()
    """ + last)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_two_optimizers_can_share_a_daemon(daemon, monkeypatch):
    monkeypatch.setenv("SLUICE_SOCKET", daemon.socket)
    pairs = [Pair(None) for _ in range(2)]
    for pair in pairs:
        pair.step()
        pair.same()


# --- refusals ----------------------------------------------------------------


@pytest.mark.parametrize("make, said", [
    (lambda p: dict(params=[p], amsgrad=True), "AdamW: amsgrad=True is not"),
    (lambda p: dict(params=[p], maximize=True), "AdamW: maximize=True is not"),
    (lambda p: dict(params=[dict(params=[p], maximize=True)]), "maximize=True"),
    (lambda p: dict(params=[dict(params=[p], lr=torch.tensor(1.0))]),
     "AdamW: lr is a tensor"),
])
def test_unsupported_options_are_refused_by_name(session, make, said):
    with pytest.raises(sluice.Unsupported, match=said):
        sluice.AdamW(**make(nn.Parameter(torch.ones(2))), session=session)


def test_invalid_arguments_are_refused(session):
    p = nn.Parameter(torch.ones(2))
    for wrong in (dict(lr=-1.0), dict(lr=torch.tensor(1.0)),
                  dict(betas=(1., 0.))):
        with pytest.raises(ValueError):
            sluice.AdamW([p], session=session, **wrong)
    with pytest.raises(sluice.Invalid, match="AdamW: session = 'here'"):
        sluice.AdamW([p], session="here")


@pytest.mark.parametrize("parameter, said", [
    (lambda: torch.ones(2, dtype=torch.float64),
     "a float64 tensor.*pass float32"),
    (lambda: torch.ones(2, dtype=torch.complex64), "a complex64 tensor"),
    (lambda: torch.ones(8)[::2], "with gaps in its memory"),
])
def test_unsupported_parameters_are_refused(session, parameter, said):
    p = nn.Parameter(parameter())
    p.grad = torch.ones_like(p)
    with pytest.raises(sluice.Unsupported, match=f"AdamW: .*{said}"):
        sluice.AdamW([p], session=session).step()


@pytest.mark.parametrize("change", [
    lambda p: p.bfloat16(), lambda p: p.double(), lambda p: p[:2],
    lambda p: p.t().contiguous().t()])
def test_a_parameter_that_changes_its_kind_after_a_step_is_refused(session,
                                                                   change):
    p = nn.Parameter(torch.ones(3, 4))
    ours = sluice.AdamW([p], session=session)
    p.grad = torch.ones_like(p)
    ours.step()
    p.grad, p.data = None, change(p.data)
    p.grad, before = torch.ones_like(p), p.detach().clone()
    with pytest.raises(sluice.Unsupported, match="when its states were made"):
        ours.step()
    assert torch.equal(p, before)


def test_the_first_group_may_be_empty_or_without_memory(daemon, monkeypatch):
    monkeypatch.setenv("SLUICE_SOCKET", daemon.socket)
    p, unmade = (nn.Parameter(torch.ones(2, device=device))
                 for device in ("cpu", "meta"))
    for first in [], [unmade]:
        ours = sluice.AdamW([dict(params=first), dict(params=[p])])
        p.grad = torch.ones_like(p)
        ours.step()
        assert ours.state[p]["step"] == 1


def test_sparse_gradients_are_refused(session):
    embedding = nn.Embedding(3, 4, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(sluice.Unsupported, match="a sparse gradient"):
        sluice.AdamW(embedding.parameters(), session=session).step()


def test_a_loaded_group_with_an_unsupported_option_is_refused(session):
    pair = Pair(session)
    pair.torchs = torch.optim.AdamW(pair.twin.parameters(), amsgrad=True)
    pair.step()
    with pytest.raises(sluice.Unsupported, match="amsgrad=True"):
        pair.ours.load_state_dict(pair.torchs.state_dict())


def test_copies_of_an_optimizer_are_refused(session):
    pair = Pair(session)
    for call in copy.deepcopy, copy.copy, pickle.dumps:
        with pytest.raises(sluice.Unsupported, match="pickled or copied"):
            call(pair.ours)


# --- loops of users ----------------------------------------------------------


def test_a_streamed_model_trains_as_with_torchs_adamw(session):
    def losses(make):
        model = tiny()
        stream = sluice.stream(model, session=session, chunk=16, quiet=True)
        optimizer, found = make(model.parameters()), []
        for step in range(4):
            loss = model(**batch(seed=step)).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        stream.unstream()
        return found

    assert losses(lambda p: sluice.AdamW(p, lr=1e-2, session=session)) == (
        losses(lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True)))


@pytest.mark.parametrize("given", ["optimizers", "optimizer_cls_and_kwargs"])
def test_trainer_trains_saves_and_resumes_with_adamw(monkeypatch, tmp_path,
                                                     daemon, given):
    monkeypatch.setenv("SLUICE_SOCKET", daemon.socket)

    def logged(kind, folder, resume=None, **options):
        model, log = tiny(), loops.Log()
        optimizer = dict(optimizers=(kind(
            model.parameters(), lr=1e-3, **options), None)) if (
            given == "optimizers") else dict(optimizer_cls_and_kwargs=(
                kind, dict(lr=1e-3, **options)))
        trainer = transformers.Trainer(
            model, transformers.TrainingArguments(**loops.settings(
                output_dir=str(folder), save_strategy="steps", save_steps=3,
                lr_scheduler_type="linear", weight_decay=0.1)),
            train_dataset=loops.rows(labels=True), callbacks=[log],
            data_collator=transformers.DataCollatorForTokenClassification(
                loops.tokenizer()), **optimizer)
        trainer.train(resume_from_checkpoint=resume)
        return [said["loss"] for said in log.said if "loss" in said]

    expected = logged(torch.optim.AdamW, tmp_path / "torch", foreach=True)
    assert logged(sluice.AdamW, tmp_path / "ours") == expected
    for kind, folder in ((sluice.AdamW, "torch"), (torch.optim.AdamW, "ours")):
        assert logged(kind, tmp_path / "again",
                      resume=str(tmp_path / folder / "checkpoint-3"),
                      ) == expected[3:]
