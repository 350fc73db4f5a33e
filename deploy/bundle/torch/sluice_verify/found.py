"""`torch`: checks that the user's torch has what Sluice needs, and reports one
line for each missing part."""

from __future__ import annotations

import importlib
import re

from sluice_verify.result import Failure, Result, in_one_line, say

EXPECTED = ("torch for CUDA that sees the GPU, with kernels for every operator "
            "of a streamed step")
OLDEST = (2, 10)  # as in the wheel's metadata
TRIED = (2, 11)  # the version that the tests use


def check(result: Result, socket: str) -> None:
    torch = find_torch()
    value = result.value
    value["torch"], value["torch_cuda"] = torch.__version__, torch.version.cuda
    judge_version(torch)
    if version_of(torch) > TRIED:
        value["note"] = ("this torch is newer than {}.{}, which the tests run "
                         "with".format(*TRIED))
    say("the GPU")
    find_gpu(torch, value)
    from sluice_verify import kernels  # needs torch
    say("operators")
    missing = kernels.without_cuda(value)
    if missing:
        raise Failure(f"this torch has no CUDA kernel for {', '.join(missing)}"
                      ": install a torch from pytorch.org or PyPI, which has "
                      "all")
    say("the daemon's GPU")
    open_session(socket)
    say("attention")
    kernels.attend(value)


def find_torch():
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise Failure(
            f"this Python has no torch that loads ({error}): install torch "
            "{}.{} or newer for CUDA, or name the Python of the environment "
            "that has it with --python".format(*OLDEST)) from error


def version_of(torch) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))


def judge_version(torch) -> None:
    if version_of(torch) < OLDEST:
        raise Failure("torch {} is too old: install {}.{} or newer".format(
            torch.__version__, *OLDEST))
    if torch.version.cuda is None:
        raise Failure(f"torch {torch.__version__} was built without CUDA: "
                      "install one that was built for it")


def find_gpu(torch, value: dict) -> None:
    try:
        torch.cuda.init()  # unlike is_available(), it says what is wrong
    except Exception as error:
        raise Failure(
            f"torch {torch.__version__} for CUDA {torch.version.cuda} sees no "
            f"GPU ({in_one_line(error)}): update NVIDIA's driver, or "
            "install a torch for a CUDA that the driver has (`doctor` says "
            "which)") from error
    gpu = torch.cuda.get_device_properties(0)
    value["gpu"] = gpu.name
    value["capability"] = f"{gpu.major}.{gpu.minor}"
    value["architectures"] = torch.cuda.get_arch_list()
    try:
        ones = torch.ones(64, 64, device="cuda:0")
        total = float((ones @ ones).sum())
    except RuntimeError as error:
        raise Failure(
            f"torch cannot compute on {gpu.name}, of capability "
            f"{value['capability']} ({in_one_line(error)}): install a "
            "torch whose architectures have it") from error
    if total != 64.0 ** 3:
        raise Failure(f"a product of ones on {gpu.name} sums up to {total:g}, "
                      f"not to {64 ** 3}")


def open_session(socket: str) -> None:
    """Checks that `sluice` loads in a process with torch and uses the same
    GPU."""
    try:
        import sluice
        with sluice.Session(socket) as session:
            device = session.limits().device
    except (ImportError, sluice.Error) as error:
        raise Failure(f"the kit's package cannot be used here: {error}"
                      ) from error
    if device != 0:
        raise Failure(f"torch numbers the daemon's GPU {device}, not 0: the "
                      "GPU's UUID is not the same for both")
