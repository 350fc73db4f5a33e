#!/usr/bin/env python3
"""Measures transformers beside the Python package on a GPU, in one process.

    gpu_python.py beside|longest|documents|ahead --bin DIR --json FILE

beside: tokens per second of plain transformers, with checkpointing, with
cuDNN's attention, with the layers' inputs in pinned memory, and of
sluice.stream().

longest: the longest sequence of each of these ways in the same GPU memory, for
one forward and backward.

documents: steps of packed documents with changing lengths, with attention that
stores a plan for each shape (cuDNN) and with attention that does not.

ahead: how long the host takes to issue a step, and how long the GPU takes to
run it.

`--small`: tiny sizes, on the CPU.
"""

import contextlib
import functools
import gc
import os
import pathlib
import statistics
import sys
import time

import figures
import in_venv
import node

CONFIGS = {"cuda": """\
[device]
driver = "cuda"
[pools]
host_bytes = "96GiB"
[gpus]
access = "any"
[http]
listen = ""
""", "cpu": """\
[device]
driver = "sim"
[sim]
gpus = 1
gpu_memory = "256MiB"
host_memory = "256MiB"
[http]
listen = ""
"""}
SIZED = dict(vocab_size=256, hidden_size=2048, intermediate_size=5632,
             num_hidden_layers=4, num_attention_heads=16,
             num_key_value_heads=4)
SMALL = dict(vocab_size=256, hidden_size=64, intermediate_size=96,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
WAYS = ("plain", "checkpointing", "checkpointing, cuDNN",
        "checkpointing, cuDNN, pinned inputs")
GIB = 1 << 30
LONGEST_STEP = 32768
LONGEST_S = 60.0  # after this time a way's search tries no further length


class Offload:
    """Offloads saved tensors of at least 1 MiB into pooled pinned memory on
    its own stream, as activation offloading of TRL and torchtune does. With
    reentrant checkpointing these are the layers' inputs. torch's save_on_cpu
    pins new memory for every tensor and waits for the copy."""

    def __init__(self):
        self._stream = torch.cuda.Stream() if DEVICE == "cuda" else None
        self._pool, self._flying = {}, []

    def pack(self, tensor):
        if (self._stream is None or tensor.nbytes < 1 << 20
                or isinstance(tensor, torch.nn.Parameter)
                or tensor._base is not None):
            return tensor
        key = (tensor.shape, tensor.dtype)
        free = self._pool.setdefault(key, [])
        host = free.pop() if free else torch.empty(
            tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
            copied = self._stream.record_event()
        # A tensor must live until its copy has finished.
        self._flying = [each for each in self._flying if not each[0].query()]
        self._flying.append((copied, tensor))
        return host, key, copied

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        host, key, copied = packed
        self._stream.wait_event(copied)
        with torch.cuda.stream(self._stream):
            back = host.to(DEVICE, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._stream)
        back.record_stream(torch.cuda.current_stream())
        self._pool[key].append(host)
        return back


def text(count):
    """Returns token ids [1, count]: bytes of torch's Python sources."""
    have = b""
    for path in sorted(pathlib.Path(torch.__file__).parent.rglob("*.py")):
        have += path.read_bytes()
        if len(have) >= count:
            break
    whole = (have * (1 + count // len(have)))[:count]
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8).long()[
        None].to(DEVICE)


def made(tokens):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, max_position_embeddings=max(tokens, 8192),
                         tie_word_embeddings=False, use_cache=False,
                         attn_implementation="sdpa")
    return LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).train()


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def clean():
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak():
    bytes_ = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
    return f"{bytes_ / GIB:.1f} GiB of GPU memory"


@contextlib.contextmanager
def by(way, tokens, **fields):
    """Yields (a model set up for `way`, a function that makes a context for
    the model's forward). Backward runs outside of this context, because hooks
    on saved tensors must not see recomputed tensors."""
    clean()
    model = made(tokens)
    with contextlib.ExitStack() as stack:
        around = contextlib.nullcontext
        if way.startswith("sluice"):
            session = stack.enter_context(
                sluice.Session(os.environ["SLUICE_SOCKET"], job="bench"))
            stream = sluice.stream(model, session=session, quiet=True,
                                   **fields)
            stack.callback(stream.unstream)
        if "checkpointing" in way:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={
                "use_reentrant": "pinned" in way})
            model.enable_input_require_grads()
        if "cuDNN" in way and DEVICE == "cuda":
            from torch.nn.attention import SDPBackend, sdpa_kernel
            stack.enter_context(sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
        if "pinned" in way:
            offload = Offload()
            around = functools.partial(torch.autograd.graph.saved_tensors_hooks,
                                       offload.pack, offload.unpack)
        yield model, around


def step(model, ids, optimizer=None, around=contextlib.nullcontext, **more):
    with around():
        loss = model(input_ids=ids, labels=ids, use_cache=False, **more).loss
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return loss


def seconds(run):
    wait()
    at = time.monotonic()
    run()
    wait()
    return time.monotonic() - at


def beside(results, tokens, steps):
    ids = text(tokens)
    chunk = max(64, min(16384, tokens // 4))
    hidden = "host" if tokens > 100_000 else "device"
    for way in (*WAYS, "sluice"):
        fields = {"chunk": chunk, "hidden": hidden} if way == "sluice" else {}
        name = f"Python, {tokens} tokens, {way}"
        try:
            with by(way, tokens, **fields) as (model, around):
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3,
                                              fused=DEVICE == "cuda")
                step(model, ids, optimizer, around)
                run = functools.partial(step, model, ids, optimizer, around)
                took = [seconds(run) for _ in range(steps)]
        except torch.OutOfMemoryError:
            results.add(name, 0.0, "tokens/s", "does not fit", better="higher")
            continue
        results.add(name, tokens / statistics.median(took), "tokens/s",
                    f"median of {steps} steps, {peak()}", better="higher")


def longest(results, gib, most):
    """Searches each way's longest sequence in `gib` GiB by doubling, then by
    bisection, in multiples of LONGEST_STEP tokens."""
    if DEVICE == "cuda":
        torch.cuda.set_per_process_memory_fraction(
            gib * GIB / torch.cuda.get_device_properties(0).total_memory)
    for way in (*WAYS[1:], "sluice"):
        fields = {"chunk": 16384, "hidden": "host"} if way == "sluice" else {}
        good, bad, at, began = 0, None, 1, time.monotonic()
        while (at > good and at * LONGEST_STEP <= most
               and time.monotonic() - began < LONGEST_S):
            try:
                with by(way, at * LONGEST_STEP, **fields) as (model, around):
                    step(model, text(at * LONGEST_STEP), None, around)
                    wait()
                good = at
            except torch.OutOfMemoryError:
                bad = at
            at = good * 2 if bad is None else (good + bad) // 2
        results.add(f"Python, longest in {gib} GiB, {way}",
                    good * LONGEST_STEP, "tokens",
                    f"{bad * LONGEST_STEP} do not fit" if bad is not None else
                    "no longer sequence was tried", better="higher")


def documents(results, tokens, steps):
    ids = text(tokens)
    for kernel in ("auto", "flash") if DEVICE == "cuda" else ("auto",):
        with by("sluice", tokens, chunk=max(64, tokens // 4), hbm=0,
                kernel=kernel) as (model, _):
            took = []
            for number in range(steps):
                positions = of_documents(tokens, number).to(DEVICE)
                took.append(seconds(functools.partial(
                    step, model, ids, position_ids=positions)))
        results.add(f"Python, documents of new lengths, {kernel}",
                    statistics.median(took[1:]), "s",
                    "steps: " + ", ".join(f"{each:.2f}" for each in took))


def of_documents(tokens, seed):
    """Returns position ids [1, tokens] of documents of 200 to 4,000 tokens."""
    random, parts, left = torch.Generator().manual_seed(seed), [], tokens
    while left:
        length = min(left, int(torch.randint(200, 4000, (),
                                             generator=random)))
        parts.append(torch.arange(length))
        left -= length
    return torch.cat(parts)[None]


def ahead(results, tokens):
    ids = text(tokens)
    for chunk in (1024, 8192) if tokens > 8192 else (64,):
        with by("sluice", tokens, chunk=chunk, hbm=0) as (model, _):
            for _ in range(2):
                step(model, ids)
            wait()
            at = time.monotonic()
            step(model, ids)
            issued = time.monotonic() - at
            wait()
            whole = time.monotonic() - at
        results.add(f"Python, host's share of a step, chunks of {chunk}",
                    issued / whole, "of the step",
                    f"issued in {1e3 * issued:.0f} of {1e3 * whole:.0f} ms")


def main():
    parser = figures.parser(__doc__)
    parser.add_argument("what",
                        choices=("beside", "longest", "documents", "ahead"))
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    global DEVICE, SHAPE, LONGEST_STEP
    DEVICE = "cpu" if arguments.small else "cuda"
    SHAPE, tokens, most = SIZED, arguments.tokens, 1 << 22
    if arguments.small:
        SHAPE, tokens, most, LONGEST_STEP = SMALL, 256, 512, 256
    results = figures.Results(arguments.json, arguments.small)
    folder = os.path.abspath(arguments.bin)
    with node.daemon(folder, CONFIGS[DEVICE]) as runtime:
        os.environ["SLUICE_SOCKET"] = os.path.join(runtime, "session.sock")
        {"beside": lambda: beside(results, tokens, arguments.steps),
         "longest": lambda: longest(results, arguments.gib, most),
         "documents": lambda: documents(results, tokens, 3),
         "ahead": lambda: ahead(results, tokens)}[arguments.what]()


if __name__ == "__main__":
    in_venv.enter()
    import torch

    import sluice
    sys.exit(main())
