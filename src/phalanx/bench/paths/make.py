"""Creation of all measured paths, in the same order on every rank."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, get_args

from phalanx.bench.config import CollectivesConfig, OnMessages, PathName
from phalanx.bench.paths.engine import EnginePath
from phalanx.bench.paths.library import MpiLibraryPath, vendor_of
from phalanx.bench.paths.path import BenchParams, BenchPath, UnavailablePath
from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.world import World

if TYPE_CHECKING:
    from phalanx.bench.paths.torch_groups import TorchGroups

ALGORITHMS: tuple[AlgorithmOption, ...] = get_args(OnMessages)
_TORCH: tuple[PathName, ...] = ("torch", "gloo", "nccl")


class BenchPaths:
    """All paths of a benchmark. Creation and closing are collective."""

    def __init__(self, config: CollectivesConfig, world: World, params: BenchParams) -> None:
        self._world, self._params = world, params
        self._timeout_s = config.timeout_s
        self._torch: TorchGroups | None = None
        chosen = config.chosen_paths
        if any(name in _TORCH for name in chosen):
            self._start_torch()
        self.all: list[BenchPath] = [self._make(name) for name in chosen]

    def close(self) -> None:
        for path in reversed(self.all):
            path.close()
        if self._torch is not None:
            self._torch.close()

    def _start_torch(self) -> None:
        from phalanx.bench.paths.torch_groups import TorchGroups
        from phalanx.torch_backend.store import open_store

        store = open_store(self._world, timedelta(seconds=self._timeout_s))
        self._torch = TorchGroups(store, self._params, self._timeout_s)

    def _make(self, name: PathName) -> BenchPath:
        if name in _TORCH:
            assert self._torch is not None, "started above"
            return self._torch.path(name, self._world.local_rank)
        if name == "mpi":
            label = vendor_of(self._world.library)
            return MpiLibraryPath(self._world.communicator, label, self._params)
        group, params = self._world.group, self._params
        if name == "window" and group.shm is not None:
            return EnginePath(name, "phalanx window", group, params, allocate=group.shm.allocate)
        if name == "window":
            reason = "there is one rank" if group.size == 1 else "the ranks share no memory here"
            return UnavailablePath(name, "phalanx window", reason)
        if name in ALGORITHMS:
            return EnginePath(name, f"phalanx {name}", group, params, algorithm=name)
        return EnginePath(name, "phalanx", group, params)
