"""Rendezvous of ranks without an MPI launcher, through the store of torchrun."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from phalanx.comm.mpi import install_stand_in, mpi
from phalanx.comm.sockets.meeting import Address, Listener
from phalanx.comm.sockets.stand_in import StandIn
from phalanx.comm.world import World
from phalanx.jobs.detect import TORCHRUN_SIGN, detect, detect_mpi
from phalanx.torch_backend.process_group import ProcessGroupMPI

# The store still holds addresses of ranks before a restart.
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """A store that all ranks share, with this rank and the world size."""

    store: Store
    rank: int
    size: int


def is_without_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun, or a program that sets its variables, started this process as one
    of several ranks, of which MPI knows nothing."""
    launched = detect(environ)
    if launched is None or launched.launcher != "torchrun":
        return False
    return TORCHRUN_SIGN in environ or launched.world_size > 1


def find_rendezvous(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Rendezvous | None:
    """Return the rendezvous of a new group, None where MPI knows its ranks.

    arguments: of PyTorch's function that makes groups; size −1: MPI provides rank and store.
    """
    if detect_mpi(environ) is not None:
        return None
    if arguments["global_ranks_in_group"]:
        default = c10d._get_default_group()
        if isinstance(default, ProcessGroupMPI):
            return None  # its ranks are connected already
        return _rendezvous(c10d._get_default_store(), default.rank(), default.size(), environ)
    if arguments["group_size"] != -1:
        ranks = (arguments["group_rank"], arguments["group_size"])
        return _rendezvous(arguments["store"], *ranks, environ)
    given = caller_locals("init_process_group")
    rank, size = init_arguments()
    if is_without_mpi(environ):
        launched = detect(environ)
        assert launched is not None
        check_init_arguments((rank, size), (launched.rank, launched.world_size))
    elif size < 2 or rank < 0:
        return None
    store = given.get("store")
    if store is None:
        url, timeout = given.get("init_method") or "env://", arguments["timeout"]
        store, rank, size = next(rendezvous(url, rank, size, timeout=timeout))
        store.set_timeout(timeout)
    return _rendezvous(store, rank, size, environ)


def fresh_store(store: Store, rank: int, environ: Mapping[str, str]) -> Store:
    """Return `store` with a prefix that no earlier group, and no run before a restart, has used."""
    life = f"phalanx/{environ.get(_RESTARTS, '0')}"
    number = store.add(f"{life}/meetings of rank {rank}", 1)
    return PrefixStore(f"{life}/{number}", store)


def init_arguments() -> tuple[int, int]:
    """Return the rank and world size passed to `init_process_group`, which ignores them for mpi;
    −1: not passed."""
    given = caller_locals("init_process_group")
    return given.get("rank", -1), given.get("world_size", -1)


def check_init_arguments(asked: tuple[int, int], started: tuple[int, int]) -> None:
    """Raise RuntimeError when a rank or world size was passed and is not the launcher's."""
    if any(given not in (-1, own) for given, own in zip(asked, started, strict=True)):
        raise RuntimeError(
            f"init_process_group was given rank {asked[0]} of {asked[1]}, but this process was "
            f"started as rank {started[0]} of {started[1]}; leave rank and world_size out, or make "
            "them agree"
        )


def connect_ranks(rdzv: Rendezvous, timeout: timedelta, *, check: bool | None = None) -> World:
    """Connect the ranks of this node and create their world, on shared memory. Collective.

    Raises: RuntimeError when a rank is missing, unreachable or on another node.
    """
    timeout_s = timeout.total_seconds()
    listener = Listener(rdzv.size)
    addresses = _exchange_addresses(rdzv, listener.address, timeout)
    check_one_node(addresses)
    mesh = listener.connect(rdzv.rank, addresses, timeout_s)
    install_stand_in(StandIn(mesh))
    try:
        return World.create(timeout_s=timeout_s, check=check)
    except BaseException:
        disconnect_ranks()
        raise


def disconnect_ranks() -> None:
    """Close the connections of `connect_ranks`, once the world is closed."""
    stand_in = mpi()
    install_stand_in(None)
    stand_in.close()


def _rendezvous(
    store: Store, rank: int, size: int, environ: Mapping[str, str]
) -> Rendezvous | None:
    if size == 1 and not is_without_mpi(environ):
        return None
    return Rendezvous(store=fresh_store(store, rank, environ), rank=rank, size=size)


def caller_locals(function: str) -> Mapping[str, Any]:
    """Return the local variables of the innermost call of `function`; empty: there is none."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame.f_locals if frame is not None else {}


def _exchange_addresses(rdzv: Rendezvous, local: Address, timeout: timedelta) -> list[Address]:
    store, rank, size = rdzv.store, rdzv.rank, rdzv.size
    keys = [f"address of rank {peer}" for peer in range(size)]
    store.set(keys[rank], json.dumps(asdict(local)))
    addresses = []
    for peer, key in enumerate(keys):
        try:
            store.wait([key], timeout)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {rank} waited {timeout.total_seconds():g} s for rank {peer} to start"
            ) from error
        addresses.append(Address(**json.loads(store.get(key))))
    return addresses


def check_one_node(addresses: Sequence[Address]) -> None:
    machines = dict.fromkeys(address.machine for address in addresses)
    if len(machines) == 1:
        return
    hosts = Counter(address.host for address in addresses)
    where = ",".join(f"{host}:{count}" for host, count in hosts.items())
    raise RuntimeError(
        f"torchrun started {len(addresses)} ranks on {len(machines)} nodes, but under torchrun "
        "backend mpi works on one node only. For several nodes start the script by MPI: mpiexec -n "
        f"{len(addresses)} -host {where} python …"
    )
