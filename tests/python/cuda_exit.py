"""Uses torch's streams without a session, and ends."""

import on_fakes  # noqa: F401, before torch

# isort: split

import torch

GPU = torch.device("cuda", 0)

model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
model.to(GPU)
for side in [torch.cuda.Stream(GPU) for _ in range(3)]:
    with torch.cuda.stream(side):
        torch.ones(3, device=GPU)
