"""The package chooses the kernel of an attention block as the planner does. The
planner's test has the same cases."""

import csv
import pathlib

import pytest
import torch

import sluice
from sluice.attention import blocks, gpu_blocks
from sluice.attention.intervals import Between, Whole, Window

CASES = pathlib.Path(__file__).parents[2].joinpath(
    "planner/stream/attention_kernels.csv")
MASKS = {"causal": Whole.CAUSAL, "full": Whole.FULL, "window": Window(16, 0),
         "intervals": Between(torch.zeros(1, 8), torch.zeros(1, 8), 0)}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
          "fp64": torch.float64}


def cases() -> list[dict[str, str]]:
    with CASES.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("case", cases(), ids=lambda case: " ".join(
    case.values()))
def test_the_chosen_kernel_is_the_planners(case, monkeypatch):
    capability = int(case["capability"])
    monkeypatch.setattr(gpu_blocks, "_capability", lambda gpu: capability)
    monkeypatch.setattr(
        torch.nn.attention, "current_flash_attention_impl",
        lambda: {"3": "FA3", "4": "FA4"}.get(case["flash"]), raising=False)
    # kernel_of reads only properties that tensors on meta have, too.
    device = "cpu" if capability < 0 else "meta"
    dtypes = [DTYPES[name] for name in case["dtype"].split(" and ")]

    def rows(count, width, dtype):
        return torch.empty(1, 1, 1, int(width), dtype=dtype, device=device
                           ).expand(1, 2, int(count), int(width))
    q = rows(8, case["head_dim"], dtypes[0])
    k = rows(case["keys"], case["head_dim"], dtypes[0])
    v = rows(case["keys"], case["value_dim"], dtypes[-1])
    mask, *further = case["mask"].split()
    scores = blocks.Scores(0.5, 30.0 if "softcap" in further else None)
    asked = q, k, v, MASKS[mask], scores, case["asked"], "part" in further
    if case["kernel"] == "refused":
        with pytest.raises(sluice.Unsupported,
                           match="^kernel " + case["asked"]):
            blocks.kernel_of(*asked)
    else:
        assert blocks.kernel_of(*asked) == case["kernel"]
