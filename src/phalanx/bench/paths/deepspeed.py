"""DeepSpeed's all-reduce in shared memory, for the CPUs of one node: an operator of PyTorch."""

from __future__ import annotations

import importlib
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from phalanx.bench.call_schedule import Case
from phalanx.bench.paths.path import (
    BenchParams,
    BenchPath,
    CaseBuffers,
    PreparedCase,
    first_reason,
    unavailable,
)
from phalanx.bench.paths.torch_groups import tensor_of
from phalanx.comm.world import World

COMPILING_S = 900.0
"""Timeout of the ranks that wait for the one that compiles, which takes a minute on a free core."""
SHARED_BYTES = 70 * 2**20
"""Space in /dev/shm that each rank takes."""
LEVELS = {"float32": 0, "float16": 2, "bfloat16": 2}
"""Level of vector instructions that the sum of each type needs."""


def deepspeed_path(world: World, params: BenchParams) -> BenchPath:
    """Return the path, of an operator that rank 0 has compiled for all. Collective."""
    reason, module = first_reason(world, obstacle(world, params)), None
    if not reason:
        # It names its memory by these, and has no other use for them.
        os.environ |= {"MASTER_ADDR": "phalanx", "MASTER_PORT": str(world.share(os.getpid()))}
        os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(params.ranks)}
        for loads in (world.rank == 0, world.rank > 0):
            if loads and not reason:
                module, reason = _load(compiles=world.rank == 0)
            world.group.barrier(name="compilation for DeepSpeed", timeout_s=COMPILING_S)
            reason = first_reason(world, reason)
    if reason:
        return unavailable("deepspeed", "DeepSpeed", reason)
    assert module is not None, "there is no reason why not"
    module.initialize(params.ranks, params.rank)
    world.barrier("the start of DeepSpeed")
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_phalanx_{os.environ['MASTER_PORT']}"
    Path(f"/dev/shm/{name}_{params.rank}").unlink(missing_ok=True)  # all have mapped it
    prepare = partial(_prepare, params, module.vector_kernel_level())
    return BenchPath(name="deepspeed", label="DeepSpeed", prepare=prepare)


def _load(*, compiles: bool) -> tuple[Any, str]:
    """Return the operator's module, compiled unless that was done before; or why there is none.

    compiles: before others load it; PyTorch would wait without end for a lock that a killed
    process has left.
    """
    try:
        builder = importlib.import_module("deepspeed.ops.op_builder").ShareMemCommBuilder()
        lock = Path(cpp_extension._get_build_directory(builder.name, verbose=False)) / "lock"
        if compiles and lock.exists():
            return (
                None,
                f"another process compiles it, or was killed: remove {lock}",
            )
        return builder.load(verbose=False), ""
    except Exception as error:  # noqa: BLE001  # the other paths continue
        text = str(error).strip().splitlines() or [type(error).__name__]
        return None, f"it does not load: {text[0]}"


def _prepare(params: BenchParams, level: int, case: Case, private: CaseBuffers) -> PreparedCase:
    if case.collective != "all_reduce" or params.op.name != "SUM":
        raise NotImplementedError("its only collective is the all-reduce that sums")
    if level < LEVELS[params.dtype.name]:
        raise NotImplementedError("its sums of half types need AVX-512")
    tensor, reduce = tensor_of(private.input, params), torch.ops.deepspeed.inference_all_reduce_
    return PreparedCase(memory=private, call=lambda: reduce(tensor))


def obstacle(world: World, params: BenchParams) -> str:
    """Return why this rank cannot use it, as far as known without trying; empty if it can."""
    if find_spec("deepspeed") is None:
        return "it is not installed: DS_ACCELERATOR=cpu pip install deepspeed"
    if params.dtype.name not in LEVELS:
        return f"it does not sum {params.dtype.name}"
    if params.ranks == 1 or not world.on_one_node:
        return "it needs several ranks on one node"
    memory = os.statvfs("/dev/shm")
    if memory.f_bavail * memory.f_frsize < SHARED_BYTES * params.ranks:
        return f"/dev/shm lacks the {SHARED_BYTES >> 20} MB per rank that it needs"
    return ""
