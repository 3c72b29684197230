"""Creation of process groups, with ranks and store from MPI."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import Store
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous as torch_rendezvous

from phalanx.comm.compiled import import_kernels
from phalanx.comm.join_world import join_world, report_binding
from phalanx.comm.workers import refuse_worker
from phalanx.comm.world import World
from phalanx.torch_backend.errors import ENGINE_ERRORS, to_torch_error
from phalanx.torch_backend.exit_hooks import install_exit_hooks
from phalanx.torch_backend.multi_backend import MultiBackendProcessGroup
from phalanx.torch_backend.process_group import ProcessGroupMPI
from phalanx.torch_backend.rendezvous import (
    Rendezvous,
    caller_locals,
    check_init_arguments,
    connect_ranks,
    disconnect_ranks,
    find_rendezvous,
    fresh_store,
    init_arguments,
    is_without_mpi,
)
from phalanx.torch_backend.session import Session
from phalanx.torch_backend.store import LazyStore, gloo_interface, open_store
from phalanx.torch_backend.threads import share_cores
from phalanx.torch_backend.torch_patches import patch_for_groups


class GroupOptions(NamedTuple):
    """Options of the group that PyTorch is making."""

    name: str
    timeout: timedelta
    session: Session
    store: Store | None
    other_backends: Mapping[str, Any]
    """Process groups for the device types that another backend serves."""


_GROUP_OPTIONS: ContextVar[GroupOptions] = ContextVar("options")
_WORLD: ContextVar[World | None] = ContextVar("world", default=None)
"""World of the session that is being started; None: of all ranks of the launcher."""


def make_group(helper: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `helper`, PyTorch's function that makes groups, with ranks and a store from MPI.

    Raises: DistBackendError when a rank is missing or has failed.
    """
    try:
        return _make_group(helper, *args, **kwargs)
    except ENGINE_ERRORS as error:
        raise to_torch_error(error) from None


def _make_group(helper: Any, *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(helper).bind(*args, **kwargs)
    arguments = bound.arguments
    ranks = arguments["global_ranks_in_group"]
    devices = c10d.BackendConfig(arguments["backend"]).get_device_backend_map()
    other_backends = {device: backend for device, backend in devices.items() if backend != "mpi"}
    if ranks and other_backends:
        open_default_store()
    if ranks and c10d._get_default_group().rank() not in ranks:
        return helper(*args, **kwargs)
    name, timeout = arguments["group_name"], arguments["timeout"]
    rdzv = None if _WORLD.get() else find_rendezvous(arguments, os.environ)
    session = _get_or_create_session(ranks, timeout, rdzv)
    world = session.world
    if not ranks:
        _check_init_arguments(init_arguments(), world)
        if arguments["group_size"] == -1:
            store = rdzv.store if rdzv else _lazy_store(world, timeout)
            arguments.update(group_rank=world.rank, group_size=world.size, store=store)
        else:
            _check_init_arguments((arguments["group_rank"], arguments["group_size"]), world)
    made: dict[str, Any] = {}
    if other_backends:
        mpi_devices = [device for device in devices if device not in other_backends]
        with gloo_interface(arguments["store"]):
            made = _make_other_backends(helper, arguments, other_backends)
        # mpi first: PyTorch makes no more backends once it has a complete process group.
        ordered = {**dict.fromkeys(mpi_devices, "mpi"), **other_backends}
        arguments["backend"] = ",".join(f"{d}:{b}" for d, b in ordered.items())
    token = _GROUP_OPTIONS.set(GroupOptions(name, timeout, session, arguments["store"], made))
    try:
        return helper(*bound.args, **bound.kwargs)
    finally:
        _GROUP_OPTIONS.reset(token)


def init_on_world(world: World) -> None:
    """Make the default group of `torch.distributed`, of backend mpi, of the ranks of `world`, on
    communicators of its own. Collective."""
    own = world.duplicate(check=_debug_checks())
    own.is_gpu_aware &= world.is_gpu_aware
    token = _WORLD.set(own)
    try:
        dist.init_process_group("mpi", timeout=timedelta(seconds=world.timeout_s))
    finally:
        _WORLD.reset(token)


def create(ranks: list[int]) -> ProcessGroupMPI:
    """Create the process group of `ranks`, which hold this rank; an empty list: all ranks."""
    name, timeout, session, store, other_backends = _GROUP_OPTIONS.get()
    engine = session.world.group
    if ranks:
        engine = engine.subgroup(ranks, name=name, tag=session.next_tag(ranks))
    engine.timeout_s = timeout.total_seconds()
    if other_backends:
        return MultiBackendProcessGroup(engine, session, store, name, other_backends=other_backends)
    return ProcessGroupMPI(engine, session, store, name)


def rendezvous(url: str) -> Iterator[tuple[Store, int, int]]:
    """Yield store, rank and world size for init_method="mpi://"."""
    if is_without_mpi(os.environ):
        store, rank, size = next(torch_rendezvous("env://"))
        yield fresh_store(store, rank, os.environ), rank, size
    else:
        world = _create_world(c10d.default_pg_timeout)
        try:
            store = open_store(world, c10d.default_pg_timeout)
        finally:
            world.close()
        yield store, world.rank, world.size
    raise RuntimeError(f"{url} cannot be joined again; start a new job")


def open_default_store() -> None:
    """Open the default group's store for a group of another backend. Collective.

    Raises: RuntimeError when it is not open and only the members of the new group call.
    """
    default = c10d._world.default_pg
    store = default.get_group_store() if isinstance(default, ProcessGroupMPI) else None
    if isinstance(store, LazyStore):
        if caller_locals("_new_group_with_tag").get("use_local_synchronization"):
            store.opened()
        store.open()


def _lazy_store(world: World, timeout: timedelta) -> LazyStore:
    def gather(value: Any) -> list[Any]:
        # Queued behind the other collectives of the default group.
        values: list[Any] = [None] * world.size
        c10d.all_gather_object(values, value)
        return values

    return LazyStore(lambda: open_store(world, timeout, gather))


def _get_or_create_session(
    ranks: list[int], timeout: timedelta, rdzv: Rendezvous | None
) -> Session:
    """Return the session of the existing groups, else start one, collectively on all ranks."""
    for group in c10d._world.pg_map:
        if isinstance(group, ProcessGroupMPI):
            return group.session
    if ranks and len(ranks) != c10d._get_default_group().size():
        raise RuntimeError(
            f"the first group of backend mpi must hold all {c10d._get_default_group().size()} "
            f"ranks, not {ranks}: make one of all ranks first, or use mpi as the default backend"
        )
    return open_session(timeout, rdzv)


def open_session(
    timeout: timedelta, rdzv: Rendezvous | None = None, communicator: Any = None
) -> Session:
    """Join all ranks, and install what reports a failure of this one to its peers. Collective.

    rdzv: of ranks without MPI; None: MPI knows them. communicator: mpi4py's; None: all ranks.
    """
    refuse_worker()
    world = _WORLD.get()
    if world is not None:
        session = Session(world)
    elif rdzv is not None:
        session = Session(connect_ranks(rdzv, timeout, check=_debug_checks()), end=disconnect_ranks)
    else:
        session = Session(_create_world(timeout, communicator))
        report_binding(session.world)
    if world is None:
        share_cores(session.world.local_size)
    _report_kernels(session.world)
    session.world.recorder.label = "backend mpi"
    install_exit_hooks(session)
    patch_for_groups()
    return session


def _create_world(timeout: timedelta, communicator: Any = None) -> World:
    return join_world(
        timeout_s=timeout.total_seconds(), check=_debug_checks(), communicator=communicator
    )


def _report_kernels(world: World) -> None:
    """Print one line, on rank 0, when Phalanx was installed without its C kernels."""
    if world.rank == 0 and import_kernels() is None:
        print(
            "phalanx: installed without C kernels, which is slower: install a C compiler, then "
            "pip install --force-reinstall --no-deps --no-cache-dir phalanx",
            file=sys.stderr,
            flush=True,
        )


def _check_init_arguments(asked: tuple[int, int], world: World) -> None:
    try:
        check_init_arguments(asked, (world.rank, world.size))
    except RuntimeError:
        world.close()
        raise


def _make_other_backends(
    helper: Any, arguments: dict[str, Any], other_backends: dict[str, Any]
) -> dict[str, Any]:
    """Make PyTorch's process group for each device type that another backend serves."""
    made = {}
    for device, backend in other_backends.items():
        changes = {
            "backend": c10d.Backend(f"{device}:{backend}"),
            "group_name": f"{arguments['group_name']}/{device}",
        }
        made[device], _ = helper(**{**arguments, **changes})
    return made


def _debug_checks() -> bool | None:
    """Return True in PyTorch's debug mode; None: as Phalanx's own variable says."""
    return os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL" or None
