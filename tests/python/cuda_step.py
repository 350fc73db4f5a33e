"""Compares streamed steps on torch's CUDA device on the fakes with steps of the
plain model on the CPU:

    cuda_step.py SOCKET MODEL [WITHOUT]

MODEL names a function of this file. WITHOUT names a wait or another operation
to leave out, so that the fakes must find a race.
"""

from __future__ import annotations

import on_fakes  # noqa: F401, before torch

# isort: split

import collections
import copy
import ctypes
import sys
import time
import traceback
import warnings
from unittest import mock

import titan
import torch
from group_layers import graded
from models import Run, assert_same, batch, run, tiny
from support import DEEP
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import sluice
from sluice.attention import blocks, gpu_blocks, whole_scores
from sluice.attention.intervals import Whole
from sluice.attention.over_chunks import Site
from sluice.memory import host_states
from sluice.memory.arena import HostArena
from sluice.plan import chunk_size
from sluice.plan.planned import BASE
from sluice.plan.step_costs import Measured

GPU = torch.device("cuda", 0)
LENGTH = 43  # two chunks of 16 and a last one of 11


def leave_out(arena: HostArena | host_states.HostStates) -> None:
    """Does nothing; main() replaces it by the function that WITHOUT names."""


def on(device: torch.device, inputs: dict) -> dict:
    return {name: value.to(device) for name, value in inputs.items()}


def on_cpu(found: Run) -> Run:
    return Run(found.loss, {name: None if g is None else g.cpu()
                            for name, g in found.gradients.items()})


def stepped(session: sluice.Session, model: nn.Module | None = None,
            computed: set[str] | None = None, **options) -> None:
    """Runs a step twice. The second run reuses the first run's memory on
    another stream. If given, `computed` are the kernels that must have run.
    """
    model, inputs = model or tiny("qwen3"), batch(length=LENGTH)
    expected = run(copy.deepcopy(model), inputs)
    model.to(GPU)
    stream = sluice.stream(model, session=session, quiet=True, hbm=0,
                           **{"chunk": 16, **options})
    leave_out(stream.arena)
    here, side = torch.cuda.current_stream(GPU), torch.cuda.Stream(GPU)
    for each in (here, side):
        each.wait_stream(here)
        with torch.cuda.stream(each):
            got = on_cpu(run(model, on(GPU, inputs)))
        assert_same(got, expected)
    here.wait_stream(side)
    stats = stream.stats()
    assert stats.blocks > 0 and stats.host_bytes == 0, stats
    assert computed is None or set(stats.kernels) == computed, stats
    stream.unstream()


# --- functions that MODEL may name -------------------------------------------

def device(session: sluice.Session) -> None:
    stepped(session)


def needs_the_gpu(module: nn.Module, args: tuple, y: torch.Tensor) -> None:
    if not y.is_cuda:
        raise RuntimeError("this module has a kernel for GPUs only")


def tried_on_its_device(session: sluice.Session) -> None:
    """A model with code that fails on the CPU is probed on its GPU."""
    expected, model = run(tiny("qwen3"), batch()), tiny("qwen3").to(GPU)
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(needs_the_gpu)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert any("was tried on cuda" in str(w.message) for w in said), said
    assert_same(on_cpu(run(model, on(GPU, batch()))), expected)
    stream.unstream()


def fits(session: sluice.Session) -> None:
    """All layers fit in the memory that the first step leaves free, so they
    run plain from the second step on."""
    model, inputs = tiny("qwen3"), batch(length=LENGTH)
    expected = run(copy.deepcopy(model), inputs)
    model.to(GPU)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    leave_out(stream.arena)
    for plain in 0, len(model.model.layers), len(model.model.layers):
        assert_same(on_cpu(run(model, on(GPU, inputs))), expected)
        assert stream.stats().plain_layers == plain, stream.stats()
    stream.unstream()


def host(session: sluice.Session) -> None:
    stepped(session, hidden="host")


def rerun(session: sluice.Session) -> None:
    stepped(session, hidden="host", rerun=0.5, check="always")


def swapped(session: sluice.Session) -> None:
    stepped(session, policy={"mlp.*": {"keep": 0.25, "swap": 0.5}},
            check="always")


def automatic(session: sluice.Session) -> None:
    """chunk="auto" chooses between two sizes that give several chunks. The
    host issues blocks faster than the GPU computes them."""
    with HostArena(session) as arena:
        heads = chunk_size.Heads(4, 2, 8, 8)
        walk = chunk_size._walk(arena, heads, GPU, torch.float32, 128, 4,
                                time.perf_counter)
        assert 0 < walk.issued < walk.whole, walk
        assert arena.used_bytes == 0
    chunk_size.SIZES = (8, 16)
    stepped(session, chunk="auto")


def measured_by_events(session: sluice.Session) -> None:
    """Durations are the GPU's, not the time in which the host enqueues."""
    a, own = torch.ones(700, 700, device=GPU), [
        torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with HostArena(session) as arena:
        measured = Measured(arena.copied, GPU)
        with measured.layer("kind", "forward", True):
            own[0].record()
            for _ in range(8):
                a @ a
            own[1].record()
        took = measured.kinds["kind"].seconds
        assert took["forward"] == 0
        measured.read()
        assert took["forward"] >= own[0].elapsed_time(own[1]) / 1e3 > 0


def planned(session: sluice.Session) -> None:
    """The second step is measured. The third step swaps as the daemon planned.
    """
    measured_by_events(session)
    model, inputs, asked = tiny("qwen3"), batch(length=LENGTH), []
    expected = run(copy.deepcopy(model), inputs)
    model.to(GPU)
    stream = sluice.stream(model, session=session, chunk=16, policy="plan",
                           hbm=0, quiet=True)
    leave_out(stream.arena)
    plan = session.plan
    with mock.patch.object(session, "plan", lambda profile, **options: (
            asked.append(profile), plan(profile, **options))[1]):
        for _ in range(3):
            assert_same(on_cpu(run(model, on(GPU, inputs))), expected)
    [profile] = asked
    recomputed = [c["recompute_seconds"] for c in profile["classes"]]
    assert 0 < sum(recomputed) < profile["forward_layer_seconds"], profile
    assert profile["backward_layer_seconds"] > 0, profile
    assert stream.plan is not None and stream.policy.shares, stream.plan
    assert any(c["swap"] for c in stream.plan["classes"]
               if c["name"] != BASE), stream.plan
    assert stream.stats().host_bytes == 0
    stream.unstream()


class Reads(TorchDispatchMode):
    """Counts, by line of the package, how often the host waits for a value
    from the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        out = func(*args, **(kwargs or {}))
        devices = {t.device.type for t in (*args, out)
                   if isinstance(t, torch.Tensor)}
        if name in ("_local_scalar_dense", "equal", "nonzero") and (
                args[0].is_cuda) or name in ("_to_copy", "copy_") and (
                len(devices) > 1):
            caller = next((line for line in traceback.extract_stack()[::-1]
                           if "/transformers/" in line.filename
                           or "/client/python/" in line.filename), None)
            if caller and "/transformers/" not in caller.filename:
                self.lines[f"{caller.filename}:{caller.lineno}"] += 1
        return out


def waits(session: sluice.Session) -> None:
    """In the second step the host waits at most twice: to learn whether the
    mask is causal, and for the chunk that check="first" compares."""
    model, inputs = tiny("qwen3").to(GPU), on(GPU, batch(length=LENGTH))
    stream = sluice.stream(model, session=session, chunk=16, hbm=0,
                           quiet=True)
    run(model, inputs)
    with Reads() as reads:
        model(**inputs).loss.backward()
    print(reads.lines)
    assert 1 <= sum(reads.lines.values()) <= 2
    stream.unstream()


def ahead(session: sluice.Session) -> None:
    """The host runs at least four chunks ahead of the GPU, although copies
    need grants and another session shares the link."""
    chunk, many = 1024, 8
    model = tiny("qwen3", num_hidden_layers=1).to(GPU)
    inputs = on(GPU, batch(1, many * chunk))
    begun: list[torch.cuda.Event] = []
    found: list[int] = []

    def begins(module: nn.Module, args: tuple) -> None:
        if args[0].is_cuda:
            found.append(sum(not event.query() for event in begun))
            begun.append(torch.cuda.Event())
            begun[-1].record()

    model.model.layers[0].mlp.register_forward_pre_hook(begins)
    stream = sluice.stream(model, session=session, chunk=chunk, hbm=0,
                           quiet=True)
    run(model, inputs)
    found.clear()
    driver = ctypes.CDLL("libcuda.so.1").fake_cuda_calls
    names = ("cuMemcpyAsync", "cuStreamWaitEvent", "cuEventRecord",
             "cuEventQuery")
    before = [driver(name.encode()) for name in names]
    with sluice.Session(session.socket, "other", gpu=0) as other:
        assert 0 < session.limits().h2d_bytes_per_second < 1e9
        other.lease_host(4 << 20)
        model(**inputs).loss.backward()
    print("ahead", found)
    print("driver calls per chunk and step", {
        name: (driver(name.encode()) - calls) / many
        for name, calls in zip(names, before, strict=True)})
    # Both in forward and in the replay of backward.
    assert max(found[:many]) >= 4 and max(found[many:]) >= 4, found
    stream.unstream()


def deadlines(session: sluice.Session) -> None:
    """The slack of a fetched chunk is the GPU's compute time between the
    chunk's prefetch and its use, without the time that compute waited for
    another copy. The host never synchronizes."""
    a = torch.ones(700, 700, device=GPU)
    driver = ctypes.CDLL("libcuda.so.1").fake_cuda_calls
    names = (b"cuEventSynchronize", b"cuStreamSynchronize")
    computed, at_most, told, waiting = [], [], [], []
    with HostArena(session) as arena:
        library = copy.copy(arena._copies._library)
        know, wait = library.engine_know_slack, library.engine_wait

        def compute() -> list[torch.cuda.Event]:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            for _ in range(8):
                a @ a
            events[1].record()
            return events

        library.engine_know_slack = lambda engine, direction, slack: (
            told.append(slack), know(engine, direction, slack))[1]
        library.engine_wait = lambda *args: (
            waiting.append(compute()), wait(*args))[1]
        arena._copies._library = library
        chunk, other = (arena.put(torch.ones(n, device=GPU))
                        for n in (1000, 10))
        for _ in range(3):
            waiting.clear()
            before = [driver(name) for name in names]
            began = time.perf_counter()
            start = torch.cuda.Event(enable_timing=True)
            start.record()
            arena.prefetch(chunk, GPU)
            arena.prefetch(other, GPU)
            arena.get(other, GPU)
            own = compute()
            arena.get(chunk, GPU)
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            issued = time.perf_counter() - began
            assert [driver(name) for name in names] == before
            end.synchronize()
            # One wait serves both copies, because `other` arrives last.
            [waited] = waiting
            computed.append(own[0].elapsed_time(own[1]) / 1e3)
            at_most.append((start.elapsed_time(end)
                            - waited[0].elapsed_time(waited[1])) / 1e3)
            print("issued", issued, "computed", computed[-1], at_most[-1])
            assert issued < computed[-1]
    print("told", told)
    assert min(computed) <= max(told) <= max(at_most)


class Masked(nn.Module):
    """Dropout by a given mask [B, S, H]."""

    def __init__(self, mask: torch.Tensor, p: float) -> None:
        super().__init__()
        self.mask, self.p = mask, p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.mask / (1 - self.p)


def drawn(session: sluice.Session) -> None:
    """Dropout in adapters: the replay draws what the forward drew, and
    gradients are those of the plain layers with the same masks. The hooks are
    added after stream(), so the layers are probed again within a call."""
    from peft import LoraConfig, get_peft_model
    p = 0.3
    model = get_peft_model(tiny("qwen3", num_hidden_layers=1), LoraConfig(
        r=4, lora_dropout=p, init_lora_weights=False,
        target_modules=["q_proj", "down_proj"]))
    plain, inputs = copy.deepcopy(model), batch(length=LENGTH)
    model.to(GPU)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           check="always", hbm=0)
    masks: dict[str, list[torch.Tensor]] = collections.defaultdict(list)
    dropouts = [name for name, module in model.named_modules()
                if isinstance(module, nn.Dropout)]
    for name in dropouts:
        model.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: masks[name].append(out != 0))
    seen = []
    for _ in range(2):
        masks.clear()
        got = on_cpu(run(model, on(GPU, inputs)))
        twin = copy.deepcopy(plain)
        for name in dropouts:
            # After the probe's chunks come the forward's three, and then the
            # replays from the last chunk to the first.
            first, again = masks[name][-6:-3], masks[name][:-4:-1]
            assert all(map(torch.equal, first, again)), name
            twin.set_submodule(name, Masked(torch.cat(first, 1).cpu(), p))
        seen.append(first[0])
        assert_same(got, run(twin, inputs))
    assert len(dropouts) == 2 and not torch.equal(*seen)
    assert 0.6 < float(seen[0].float().mean()) < 0.8
    stream.unstream()


def windows(session: sluice.Session) -> None:
    """ATen has no fp32 kernel with windows, so blocks that the window cuts are
    computed from whole scores, and other blocks by the efficient kernel."""
    stepped(session, tiny("mistral", sliding_window=24),
            {"efficient", "whole scores"})


class NoExperts(nn.Linear):
    """Replaces experts, because the fakes do not implement routing."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return super().forward(x), None


def by_scores(session: sluice.Session) -> None:
    """No fp32 kernel supports softcaps, windows, or values narrower than keys,
    so such blocks are computed from whole scores, in several strips."""
    whole_scores._ROWS = 7
    stepped(session, tiny(
        "gemma2", sliding_window=24, query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
        {"whole scores"})
    whole_scores._ROWS = 10  # two strips per chunk
    stepped(session, tiny(  # values are narrower than keys
        "deepseek_v3", q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4,
        qk_nope_head_dim=8, v_head_dim=8, head_dim=4, num_key_value_heads=4,
        first_k_dense_replace=2), {"whole scores"})
    # One layer has a window, the other has full attention. Both have sinks.
    sinks = tiny("gpt_oss", num_local_experts=2, num_experts_per_tok=2,
                 sliding_window=24)
    for layer in sinks.model.layers:
        layer.mlp = NoExperts(sinks.config.hidden_size)
    stepped(session, sinks, {"whole scores", "efficient"})


def streams(session: sluice.Session) -> None:
    """Each layer runs on its own stream in forward, and therefore in backward.
    Each stream reads what another stream stored in host memory."""
    titan.rotate = lambda x, _: x  # the fakes do not support complex views
    model, ids = Titan.on_sides(), titan.tokens()
    expected = graded(copy.deepcopy(model), ids)
    model.to(GPU)
    with sdpa_kernel(SDPBackend.MATH):
        stream = sluice.stream(
            layers=model.layers, attention="sdpa", rows={"freqs_cis": 0},
            session=session, chunk=16, quiet=True, hidden="host",
            sample=lambda: model(ids.to(GPU)))
        leave_out(stream.arena)
        for _ in range(2):
            assert_same(on_cpu(graded(model, ids.to(GPU))), expected)
    assert stream.stats().host_bytes == 0
    stream.unstream()


def handover(session: sluice.Session) -> None:
    """Two streams that do not wait for each other may use one arena."""
    one, other = torch.cuda.Stream(GPU), torch.cuda.Stream(GPU)
    many = 1 << 20  # 4 MiB in fp32, more than running copies may keep alive
    with HostArena(session) as arena:
        leave_out(arena)
        with torch.cuda.stream(one):
            held = arena.put(torch.ones(many, device=GPU))
            fetched = arena.get(held, GPU)
            doubled = fetched + fetched
            del fetched
        with torch.cuda.stream(other):
            more = [arena.put(torch.full((many,), 3.0, device=GPU))
                    for _ in range(4)]
            again = arena.get(more[0], GPU)  # in the memory of `fetched`
        with torch.cuda.stream(one):
            # Torch may reuse the memory of the first tensor that was put.
            new = torch.full((many,), 4.0, device=GPU)
        for stream, tensor, value in ((one, doubled, 2), (other, again, 3),
                                      (one, new, 4)):
            with torch.cuda.stream(stream):
                assert bool((tensor == value).all())
                assert bool((arena.get(held, GPU) == 1).all())
        del again, tensor  # these lie in the lease


class Titan(titan.Titan):
    """Runs each layer on a stream of its own if the model is on a GPU."""

    @staticmethod
    def on_sides() -> Titan:
        torch.manual_seed(0)
        made = Titan().train()
        # The fakes compute on the CPU, and torch has no CPU kernel for the
        # backward of CUDA's RMSNorm.
        for owner in list(made.modules()):
            for name, module in owner.named_children():
                if isinstance(module, nn.RMSNorm):
                    setattr(owner, name, nn.LayerNorm(titan.HIDDEN))
        return made

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            if not h.is_cuda:
                h = layer(h, self.freqs_cis)
                continue
            here, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(here)
            h.record_stream(side)
            with torch.cuda.stream(side):
                h = layer(h, self.freqs_cis)
            here.wait_stream(side)
            h.record_stream(here)
        return self.output(self.norm(h))


def in_bf16(session: sluice.Session, exact: nn.Module, computed: set[str],
            chunk: int = 16, further=(), **options) -> None:
    """Checks that the error against fp32 is at most 1.2 times the plain
    model's, and that the kernels `computed` have run. `further` are inputs
    besides ids and labels."""
    inputs = {**batch(length=LENGTH), **dict(further)}
    expected = run(copy.deepcopy(exact), inputs)
    model = exact.bfloat16()
    plain = run(copy.deepcopy(model), inputs)
    model.to(GPU)
    stream = sluice.stream(model, session=session, chunk=chunk, quiet=True,
                           **options)
    try:
        got = on_cpu(run(model, on(GPU, inputs)))
        assert set(stream.stats().kernels) == computed, stream.stats()
    finally:
        stream.unstream()

    def apart(found: Run) -> float:
        return sum(float((found.gradients[name].float() - wanted).norm()) ** 2
                   for name, wanted in expected.gradients.items()) ** 0.5
    print(f"from fp32: {apart(got):.4f}, plain {apart(plain):.4f}")
    assert apart(got) <= 1.2 * apart(plain)


def rounded(session: sluice.Session) -> None:
    in_bf16(session, tiny("qwen3"), {"flash"})
    # Hopper's compute capability selects cuDNN.
    gpu_blocks._capability = lambda gpu: 90
    in_bf16(session, tiny("qwen3"), {"cudnn"})
    # Flash computes blocks that the end of a document cuts.
    places = torch.cat([torch.arange(24), torch.arange(LENGTH - 24)])
    in_bf16(
        session, tiny("qwen3", use_cache=False), {"cudnn", "flash"}, further={
            "position_ids": places.expand(len(batch()["input_ids"]), -1)})
    deterministic(session)


def deterministic(session: sluice.Session) -> None:
    """In torch's deterministic mode cuDNN is not chosen, and the error that
    refuses kernel="cudnn" names this mode."""
    torch.use_deterministic_algorithms(True)
    in_bf16(session, tiny("qwen3"), {"flash"})
    try:
        in_bf16(session, tiny("qwen3"), {"cudnn"}, kernel="cudnn")
    except sluice.Unsupported as refused:
        assert "deterministic" in str(refused), refused
    else:
        raise AssertionError("cudnn")
    torch.use_deterministic_algorithms(False)


def by_efficient(session: sluice.Session) -> None:
    in_bf16(session, tiny("qwen3"), {"efficient"}, kernel="efficient")


def rounded_output(session: sluice.Session) -> None:
    """Attention's output o is stored on the host in bf16, as the kernels read
    it. The gradients are bit-identical to those with o stored in fp32."""
    inputs, found = batch(length=LENGTH), []
    for wide in blocks.READ_WIDE, blocks.READ_WIDE | {"flash"}:
        model = tiny("qwen3").bfloat16().to(GPU)
        nbytes: list[int] = []
        keep = Site.keep_o

        def counted(site: Site, *kept, keep=keep,
                    nbytes=nbytes) -> None:
            keep(site, *kept)
            nbytes.append(site.o[kept[0]].nbytes)
        with mock.patch.object(blocks, "READ_WIDE", wide), \
                mock.patch.object(Site, "keep_o", counted):
            stream = sluice.stream(model, session=session, chunk=16, quiet=True)
            nbytes.clear()  # drop the probe's calls
            got = on_cpu(run(model, on(GPU, inputs)))
            found.append((sum(nbytes), got))
            stream.unstream()
    (narrow, ours), (wide_bytes, theirs) = found
    # A row of a head has 8 elements of o and one fp32 lse.
    assert narrow * (4 * 8 + 4) == wide_bytes * (2 * 8 + 4), narrow
    assert ours.loss == theirs.loss
    for name, gradient in theirs.gradients.items():
        assert torch.equal(ours.gradients[name], gradient), name


def layouts(session: sluice.Session) -> None:
    """The gradients of each kernel do not depend on the strides of its
    tensors. (On an H100 the efficient kernel misreads o if its heads come
    before its rows in memory.)"""
    draw = torch.Generator().manual_seed(7)
    do, q, k, v = (torch.randn(1, 3, 37, 16, generator=draw).bfloat16().to(GPU)
                   for _ in range(4))
    for kernel in "flash", "efficient", "cudnn":
        o, lse = gpu_blocks.forward(kernel, q, k, v, Whole.CAUSAL, 0.25)
        found = [gpu_blocks.backward(kernel, *laid(do, q, k, v, o), lse,
                                     Whole.CAUSAL, 0.25)
                 for laid in (heads_first, rows_first)]
        for one, other in zip(*found, strict=True):
            assert torch.equal(one.cpu(), other.cpu()), kernel


def heads_first(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.contiguous() for t in tensors]


def rows_first(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]


def by_cudnn(session: sluice.Session) -> None:
    """The diagonal block of a last chunk with one row has one key, which cuDNN
    does not support; flash computes this block."""
    in_bf16(session, tiny("qwen3"), {"cudnn", "flash"}, LENGTH - 1,
            kernel="cudnn")
    in_bf16(session, tiny("llama"), {"cudnn"}, kernel="cudnn")


def by_flash_through_windows(session: sluice.Session) -> None:
    """By default flash computes all blocks for windows of any width, so no
    scores are materialised."""
    others = ((16, 16), (5, 13)) if DEEP else ()
    for width, chunk in ((24, 16), (7, 16), *others):
        in_bf16(session, tiny("mistral", sliding_window=width), {"flash"},
                chunk)
    in_bf16(session, tiny("mistral", sliding_window=24), {"cudnn", "flash"},
            kernel="cudnn")


def no_kernel(session: sluice.Session) -> None:
    """Tensors that the chosen kernel does not support are refused with the
    kernel's name. No other kernel computes them."""
    for kernel, width, said in (("cudnn", 16, "have 4"),
                                ("flash", 16, "have 4"),
                                ("cudnn", 136, "have 136")):
        model, stream = tiny("qwen3", head_dim=width).to(GPU), None
        try:
            stream = sluice.stream(model, session=session, quiet=True,
                                   kernel=kernel)
            assert said == "have 4"  # stream() itself refuses a width of 136
            run(model, on(GPU, batch()))
        except sluice.Unsupported as refused:
            assert str(refused).startswith(f"kernel {kernel}: "), refused
            assert said in str(refused), refused
        else:
            raise AssertionError(kernel)
        finally:
            if stream is not None:
                stream.unstream()


def slots(session: sluice.Session) -> None:
    """Tensors fetched from the host lie in the lease. The memory of a living
    tensor is not reused."""
    def used() -> int:
        return len(arena._slots._held) - len(arena._slots._expired())

    with HostArena(session) as arena:
        values = torch.arange(1000.0, device=GPU)
        held = arena.put(values)
        first = arena.get(held, GPU)
        assert arena._slots.nbytes > 0 and used() == 1
        part = first[500:]
        address = first.data_ptr()
        del first
        second = arena.get(held, GPU)
        assert second.data_ptr() != address and used() == 2
        assert part.tolist() == list(range(500, 1000))
        del part
        assert arena.get(held, GPU).data_ptr() == address
        for made in (torch.ones((), device=GPU), torch.ones(0, 3, device=GPU),
                     torch.ones(2, 3, device=GPU, dtype=torch.bfloat16),
                     torch.ones(3, 2, device=GPU, dtype=torch.bool).t()):
            again = arena.get(arena.put(made), GPU)
            assert again.dtype == made.dtype and again.shape == made.shape
            assert again.is_contiguous() and torch.equal(again, made)
        recorded_by_torch(arena)
        # The daemon's pool is 64 MiB; torch's own memory is not part of it.
        large = [arena.get(arena.put(torch.ones(5 << 20, device=GPU)), GPU)
                 for _ in range(4)]
        assert all(bool((x == 1).all()) for x in large)
    # The tensor outlives its arena.
    assert second.tolist() == list(range(1000))
    del second, large, again
    HostArena(session).close()


def recorded_by_torch(arena: HostArena) -> None:
    """`record_stream` is called only for torch's own memory, because some of
    torch's allocators refuse other memory."""
    recorded = []
    for own in (False, True):
        held = arena.put(torch.ones(1000, device=GPU))
        slots = arena._slots
        if own:
            arena._slots = mock.Mock(wraps=slots, **{
                "empty.side_effect": lambda shape, dtype: torch.empty(
                    shape, dtype=dtype, device=GPU)})
        arena.prefetch(held, GPU)
        arena._slots = slots
        with torch.cuda.stream(torch.cuda.Stream()), mock.patch.object(
                torch.Tensor, "record_stream", autospec=True,
                side_effect=lambda *_, own=own: recorded.append(own)):
            assert bool((arena.get(held, GPU) == 1).all())
    assert recorded == [True]


def optimizer(session: sluice.Session, dtype: torch.dtype = torch.float32
              ) -> None:
    """sluice.AdamW on two streams, in several buckets, equals torch's on the
    CPU. Each step reads what the step before has stored on the host."""
    host_states.BUCKET_BYTES = 4 << 20
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(n, dtype=dtype).to(GPU)) for n in
            (3, 300_000, 1_300_000, 400_000, 0, 7)]
    torchs = [nn.Parameter(p.detach().float().cpu()) for p in ours]
    optimizer = sluice.AdamW(ours, lr=1e-2, session=session)
    leave_out(optimizer._states)
    expected = torch.optim.AdamW(torchs, lr=1e-2, foreach=True)
    # In every third step all parameters have gradients, in the other steps only
    # the first two. The gradients are copied before the steps, because a wait
    # for the copies would order the steps.
    grads = [[torch.randn(p.shape).to(dtype) if i < 2 or step % 3 == 0
              else None for i, p in enumerate(ours)] for step in range(6)]
    on_gpu = [[None if grad is None else grad.to(GPU) for grad in of_step]
              for of_step in grads]
    here, side = torch.cuda.current_stream(GPU), torch.cuda.Stream(GPU)
    seen = []
    for step, of_step in enumerate(on_gpu):
        stream = here if step < 3 else side
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for p, grad in zip(ours, of_step, strict=True):
                p.grad = grad
            optimizer.step()
            # Runs on the stream after the step.
            seen.append([p + 0 for p in ours])
        here.wait_stream(stream)
    # The host has not waited for anything yet.
    states = [{name: value.clone() for name, value in
               optimizer.state[p].items()} for p in ours]
    for of_step, found in zip(grads, seen, strict=True):
        for twin, grad in zip(torchs, of_step, strict=True):
            twin.grad = None if grad is None else grad.float()
        expected.step()
        for got, twin in zip(found, torchs, strict=True):
            assert torch.equal(got.cpu(), twin.to(dtype))
    for found, twin in zip(states, torchs, strict=True):
        for name, value in expected.state[twin].items():
            assert torch.equal(found[name], value), name
        assert dtype == torch.float32 or torch.equal(found["master"], twin)
    optimizer.load_state_dict(expected.state_dict())
    assert all(torch.equal(optimizer.state[p]["exp_avg"],
                           expected.state[twin]["exp_avg"])
               for p, twin in zip(ours, torchs, strict=True))


def rounded_optimizer(session: sluice.Session) -> None:
    optimizer(session, torch.bfloat16)


def refusals(session: sluice.Session) -> None:
    try:
        sluice.stream(tiny("qwen3"), session=session, quiet=True)
    except sluice.Error as refused:
        print(refused)


# --- functions that WITHOUT may name -----------------------------------------

def no_wait(arena: HostArena) -> None:
    """Compute does not wait for copies."""
    arena._copies.wait = lambda direction, ticket: (
        arena._copies.in_flight[direction].settle(ticket))


def no_mark(arena: HostArena) -> None:
    """Copies do not wait for compute."""
    library = copy.copy(arena._copies._library)
    library.engine_mark_compute = lambda *_: 0
    arena._copies._library = library


def no_order(states: host_states.HostStates) -> None:
    """A bucket is fetched into memory from which the previous bucket is still
    being copied."""
    start = states._copies.start
    states._copies.start = lambda *copied: start(*copied[:-1], 0)


def no_stream(arena: HostArena) -> None:
    """Copies no longer follow torch's current stream."""
    arena._copies._follow = lambda: None


def a_session_by_torchs_device(session: sluice.Session) -> None:
    with sluice.Session(session.socket, "of-1", device="cuda:1") as other:
        assert other.limits().device == 1
    with sluice.Session(session.socket, "of-0", gpu=1,
                        device="cuda:0") as other:
        assert other.limits().device == 0


def no_hold(arena: HostArena) -> None:
    """Copies do not keep their tensors alive."""
    class Forgets(collections.deque):
        def append(self, item):
            super().append((*item[:2], None))

    for flight in arena._copies.in_flight:
        flight.held = Forgets(flight.held)


def no_handover(arena: HostArena) -> None:
    """Work on a new stream does not wait for work on the earlier stream."""
    def without(stream: int) -> None:
        arena._copies._library.engine_use_stream(arena._handle.value, stream)
        arena._copies.stream = stream
    arena._copies._go_to = without


def main() -> None:
    global leave_out
    socket, what, without = (*sys.argv[1:], "")[:3]
    if without:
        leave_out = globals()[without]
    torch.set_num_threads(1)
    with sluice.Session(socket) as session:
        assert session.limits().device == 0
        globals()[what](session)
    print("same")


if __name__ == "__main__":
    main()
