"""Creation of all measured paths, in the same order on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import get_args

from phalanx.bench.config import CollectivesConfig, OnMessages, PathName
from phalanx.bench.paths.engine import prepare_engine, prepare_world
from phalanx.bench.paths.library import prepare_library, vendor_of
from phalanx.bench.paths.oneccl import oneccl_path
from phalanx.bench.paths.path import BenchParams, BenchPath, unavailable
from phalanx.comm.world import World

_TORCH: tuple[PathName, ...] = ("torch", "gloo", "nccl")


@contextmanager
def open_paths(
    config: CollectivesConfig, world: World, params: BenchParams
) -> Iterator[list[BenchPath]]:
    """Yield the chosen paths. Creation and closing are collective, so that an error in the block
    closes nothing."""
    names, timeout = config.chosen_paths, timedelta(seconds=config.timeout_s)
    communicator = world.communicator.Dup() if "mpi" in names else None
    uses_torch = any(name in _TORCH for name in names)
    if uses_torch:
        from phalanx.bench.paths.torch_groups import start_torch, torch_path

        start_torch(world, params, timeout)

    def make(name: PathName) -> BenchPath:
        if name in _TORCH:
            return torch_path(name, params, world.local_rank, timeout)
        if name == "mpi":
            label = vendor_of(world.library)
            prepare = partial(prepare_library, communicator, label, params)
            return BenchPath(name=name, label=label, prepare=prepare)
        if name == "deepspeed":
            from phalanx.bench.paths.deepspeed import deepspeed_path

            return deepspeed_path(world, params)
        if name == "oneccl":
            return oneccl_path(world, params)
        if name == "world":
            prepare = partial(prepare_world, world, params)
            return BenchPath(name=name, label="phalanx World", prepare=prepare)
        group, engine = world.group, partial(prepare_engine, world.group, params)
        if name == "window":
            if group.shm is None:
                alone = group.size == 1
                reason = "there is one rank" if alone else "the ranks share no memory here"
                return unavailable(name, "phalanx window", reason)
            engine = partial(engine, allocate=group.shm.allocate)
        elif name in get_args(OnMessages):
            engine = partial(engine, algorithm=name)
        label = "phalanx" if name == "phalanx" else f"phalanx {name}"
        return BenchPath(name=name, label=label, prepare=engine)

    yield [make(name) for name in names]
    if communicator is not None:
        communicator.Free()
    if uses_torch:
        from phalanx.torch_backend.leave_group import destroy_default_group

        destroy_default_group()
