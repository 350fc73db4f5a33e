"""DDP, FSDP2 and HSDP around a streamed model give the same gradients as
around the plain model. There is one process per rank, on Gloo."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from data_parallel import CASES, ONLY_DEEP, work
from gloo import run_ranks
from models import Run, assert_same, batch, run, tiny
from private_daemon import PrivateDaemon
from support import DEEP, forked
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import sluice


@pytest.mark.parametrize("world", [2, 4])
def test_gradients_equal_those_of_the_plain_model(tmp_path, world):
    cases = [case for case in CASES if (case == "hsdp") == (world == 4)
             and (DEEP or case not in ONLY_DEEP)]
    with contextlib.closing(PrivateDaemon(gpus=1)) as daemon:
        ranks = forked(lambda: run_ranks(
            world, work, world, str(tmp_path / "group"), daemon.socket, cases))
    assert ranks.returncode == 0, ranks.stdout + ranks.stderr


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0,
                            world_size=1)
    yield
    dist.destroy_process_group()


def test_a_sharded_module_inside_a_streamed_layer_is_refused(session, alone):
    model = tiny()
    sluice.stream(model, session=session, chunk=16)
    for layer in model.model.layers:
        fully_shard(layer.mlp)
    fully_shard(model)
    with pytest.raises(sluice.Unsupported, match="'mlp' is an FSDP2 unit "
                       "inside.*fully_shard\\(layer\\)"):
        model(**batch())


@pytest.mark.parametrize("first", ["stream", "shard"])
def test_layers_sharded_by_fsdp1_are_refused_by_name(session, alone, first):
    model = tiny()
    policy = ModuleWrapPolicy({type(model.model.layers[0])})
    if first == "stream":
        sluice.stream(model, session=session, chunk=16, quiet=True)
    sharded = FullyShardedDataParallel(
        model, auto_wrap_policy=policy, use_orig_params=True,
        device_id=torch.device("cpu"))
    with pytest.raises(sluice.Unsupported, match="FSDP1.*by fully_shard"):
        if first == "shard":
            sluice.stream(model, session=session, chunk=16)
        sharded(**batch())


def test_logits_of_a_sharded_model_can_be_read_but_not_trained_on(
        session, alone):
    model = tiny()
    expected = model(**batch()).logits
    sluice.stream(model, session=session, chunk=16, quiet=True)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    with torch.no_grad():
        found = model(**batch()).logits + 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    logits = model(**batch()).logits
    with pytest.raises(sluice.Unsupported, match="model that is sharded"):
        logits.sum()


def test_gradients_are_exact_if_the_model_is_already_one_fsdp_unit(
        session, alone):
    model, plain = tiny(), tiny()
    fully_shard(model)
    sluice.stream(model, session=session, chunk=16)
    found = run(model, batch())
    assert_same(Run(found.loss, {n: g.full_tensor() for n, g in
                                 found.gradients.items()}),
                run(plain, batch()))
