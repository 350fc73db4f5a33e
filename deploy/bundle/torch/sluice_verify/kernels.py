"""Finds the torch operators that have CUDA kernels, and the attention kernels
that run on this GPU."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from sluice.attention import blocks, gpu_blocks
from sluice.attention.intervals import Between, Whole, Window
from sluice_verify.decoder import loss_of, seeded
from sluice_verify.result import Failure, in_one_line

# Operators that compute attention's blocks on a GPU. The CPU uses others.
ON_GPU = ("aten::_flash_attention_forward", "aten::_flash_attention_backward",
          "aten::_scaled_dot_product_efficient_attention",
          "aten::_scaled_dot_product_efficient_attention_backward")
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION}
SHAPE = (1, 4, 64, 64)  # B, heads, rows, width
CLOSE = {torch.bfloat16: 3e-2, torch.float32: 1e-4}
# NEEDED are the kernels and dtypes that kernel="auto" uses on every GPU, and
# ASKED are all that blocks may request.
NEEDED = (("flash", torch.bfloat16), ("efficient", torch.float32))
ASKED = (*NEEDED, ("cudnn", torch.bfloat16), ("efficient", torch.bfloat16))


class _Names(TorchDispatchMode):
    """Context manager that collects the names of operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found.add(func.name())
        return func(*args, **(kwargs or {}))


def without_cuda(value: dict) -> list[str]:
    """Returns the operators of a step on the CPU that have no CUDA kernel."""
    with _Names() as names:
        loss_of(seeded(), torch.zeros(1, 40, dtype=torch.long)).backward()
        first = torch.zeros(1, SHAPE[2], dtype=torch.long)
        own = torch.arange(SHAPE[2])[None]
        for mask, softcap in ((Whole.CAUSAL, None), (Whole.CAUSAL, 30.0),
                              (Window(16, 0), None),
                              (Between(first, own, 0), None)):
            _block(*_qkv("cpu", torch.float32), mask, softcap=softcap)
    wanted = {name for name in names.found if "_for_cpu" not in name}
    wanted.update(ON_GPU)
    value["operators"] = len(wanted)
    has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return sorted(name for name in wanted if not has(name, "CUDA"))


def attend(value: dict) -> None:
    """Compares each attention kernel that blocks may request with the CPU's.
    Raises `Failure` if a needed kernel does not run, or if any kernel's numbers
    differ."""
    value["blocks"] = {}
    for kernel, dtype in ASKED:
        said = "yes"
        try:
            compare(kernel, dtype)
        except RuntimeError as error:
            said = in_one_line(error)
            if (kernel, dtype) in NEEDED:
                raise Failure(
                    f"torch's {kernel} attention does not run on this GPU "
                    f"({said}): {dtype} needs it; tell us") from error
        value["blocks"][f"{kernel} {short(dtype)}"] = said
    value["attention"] = {name: _runs(backend)
                          for name, backend in BACKENDS.items()}


def compare(kernel: str, dtype: torch.dtype) -> None:
    """Compares one causal block with the CPU's. Raises `Failure` if the numbers
    differ, RuntimeError if the kernel does not run."""
    q, k, v = _qkv("cuda:0", dtype)
    got = _block(q, k, v, Whole.CAUSAL, kernel)
    exact = _block(*(t.float().cpu() for t in (q, k, v)), Whole.CAUSAL)
    for name, one, other in zip(("o", "lse", "dq", "dk", "dv"), got, exact):
        apart = float((one.float().cpu() - other).norm() / other.norm())
        if not apart <= CLOSE[dtype]:
            raise Failure(f"torch's {kernel} attention gives a {name} that is "
                          f"{apart:.2g} of its norm apart from the CPU's, the "
                          f"limit is {CLOSE[dtype]:g}")


def short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]


def _qkv(device: str, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(SHAPE, generator=generator).to(device, dtype)
            for _ in range(3)]


def _block(q: Tensor, k: Tensor, v: Tensor, mask: blocks.Mask,
           kernel: gpu_blocks.Kernel = "auto", softcap: float | None = None
           ) -> list[Tensor]:
    """Returns o, lse and the gradients of one block."""
    scores = blocks.Scores(q.shape[-1] ** -0.5, softcap)
    part, part_lse = blocks.forward(q, k, v, mask, scores, kernel)
    o, lse = blocks.nothing(q, v)
    lse = blocks.merge(o, lse, part, part_lse).float()
    return [o, lse, *blocks.backward(torch.ones_like(q), q, k, v, o, lse, mask,
                                     scores, kernel)]


def _runs(backend: SDPBackend) -> str:
    """Returns "yes" if the kernel runs, else torch's warnings as the reason."""
    q, k, v = (t.requires_grad_() for t in _qkv("cuda:0", torch.bfloat16))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(q, k, v, is_causal=True
                                               ).sum().backward()
            torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            return why(error, told)
    return "yes"


def why(error: RuntimeError, told: list[warnings.WarningMessage]) -> str:
    """Returns the error and the warnings that torch gave before the error."""
    return " ".join([in_one_line(error), *(
        str(each.message).split(" (Triggered")[0] for each in told)])
