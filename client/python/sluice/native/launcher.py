"""Reads the rank and job of this process from its launcher's variables."""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from sluice.base.arguments import invalid


class Place(NamedTuple):
    """Place of a rank in its job; all ranks of a job have the same `job`."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int | None = None  # None: unknown
    job: str = ""


# Names of each launcher's variables: rank, world size, rank and number of ranks
# on this node, and those that identify the job. `place` takes the first
# launcher that has set the first two. torchrun is first: Slurm may start it.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "TORCHELASTIC_RUN_ID", "MASTER_PORT"),
    # A Slurm batch script is one process and has no variables of a step.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE"),
    # MPICH and Intel MPI.
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """Returns this process's place; `Place()` without a launcher. Raises
    `Invalid` if a variable is not a number."""
    for rank, world, local, here, *job in _LAUNCHERS:
        if rank in environment and world in environment:
            return Place(
                _count(environment, rank), _count(environment, world),
                _count(environment, local if local in environment else rank),
                _count(environment, here) if here in environment else None,
                "-".join(["python", *(environment[name] for name in job
                                      if name in environment)]))
    return Place()


def _count(environment: Mapping[str, str], name: str) -> int:
    """Parses a count. For a list of nodes, as Slurm's "4(x2),1" (4, 4 and 1
    tasks on three nodes), returns this node's count."""
    text = environment[name]
    if not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", text):
        raise invalid(f"Session: {name} = {text!r} in the environment: a "
                      "number from 0")
    counts = [int(count) for count, times in re.findall(
        r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]
    node = int(environment.get("SLURM_NODEID", 0))
    return counts[min(node, len(counts) - 1)]
