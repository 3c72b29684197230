"""Settings that shape collectives, exchanged by all ranks before anything depends on them.

A rank that cuts a vector in other chunks than its peers, or takes another algorithm, makes wrong
sums. So nothing that shapes a collective is read from a rank's own surroundings later on: every
rank sends what it sees once, and all derive the same `Settings` from all of it, or all raise.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import phalanx
from phalanx.comm import kernels
from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.gpu import is_gpu_aware
from phalanx.comm.link import LINK, Link
from phalanx.comm.rank_labels import RankLabels, hosts_to_name
from phalanx.comm.select import VARIABLE, requested_algorithm
from phalanx.errors import UserError
from phalanx.jobs.cores import (
    CpuQuota,
    bound_cores,
    cpu_quota,
    last_level_cache_bytes,
    shared_cores,
)

CHECK = "PHALANX_CHECK"  # "1": every collective is compared among the ranks before it is made
VERSION = phalanx.__version__


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """One rank's own, read from its surroundings."""

    host: str
    """The name of its host."""
    version: str
    protocol: int | None
    """Version of the memory that the C kernels share; None without kernels."""
    affinity: list[int]
    quota: CpuQuota | None
    cache_bytes: int
    link: str | None
    """Emulated link of the environment or of the program."""
    all_reduce: str | None
    check: bool
    gpu_aware: bool
    problem: str | None = None
    """A value that means nothing, in words."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The same on every rank."""

    all_reduce: AlgorithmOption
    check: bool
    is_gpu_aware: bool
    cache_bytes: int
    """The smallest last level of cache of any node."""
    cores: int = 1
    """Cores that the ranks of this node have together; the same on its ranks."""


def read_settings(
    environ: Mapping[str, str],
    *,
    link: Link | None,
    check: bool | None,
    library: str,
    reported_gpu_aware: bool | None,
) -> RankSettings:
    """This rank's. link, check: as the program says, None: as the environment does. library: the
    version text of the MPI library; reported_gpu_aware: its own answer
    (`query_gpu_support`)."""
    module, problem, gpu_aware = None, None, False
    try:
        module = kernels.compiled()
        gpu_aware = is_gpu_aware(environ, library, reported_gpu_aware) is True
    except ValueError as error:  # told to all ranks, since they wait for this one
        problem = str(error)
    return RankSettings(
        host=socket.gethostname(),
        version=VERSION,
        protocol=getattr(module, "PROTOCOL", 0) if module is not None else None,
        affinity=sorted(bound_cores()),
        quota=cpu_quota(),
        cache_bytes=last_level_cache_bytes(),
        link=(environ.get(LINK) or None) if link is None else str(link),
        all_reduce=environ.get(VARIABLE) or None,
        check=environ.get(CHECK, "0") not in ("", "0") if check is None else check,
        gpu_aware=gpu_aware,
        problem=problem,
    )


def exchange(own: RankSettings, gather: Callable[[str], Sequence[str]]) -> list[RankSettings]:
    """Exchange the settings of all ranks. Collective.

    gather: returns the texts of all ranks, in rank order. They are JSON, which ranks of other
    versions can read.

    Raises: UserError, on every rank, when the ranks run different versions.
    """
    texts = [json.loads(text) for text in gather(json.dumps(asdict(own)))]
    name_of = _labels([text.get("host", "?") for text in texts]).short
    builds = [(text.get("version"), text.get("protocol")) for text in texts]
    if len({version for version, _ in builds}) > 1:
        described = _who_has([f"{version}" for version, _ in builds], name_of)
        raise UserError(f"the ranks run different versions of Phalanx: {described}")
    protocols = {protocol for _, protocol in builds if protocol is not None}
    if len(protocols) > 1:
        described = _who_has(
            [f"{'none' if protocol is None else protocol}" for _, protocol in builds], name_of
        )
        raise UserError(
            f"the ranks have C kernels of different builds of Phalanx (protocol: {described}): "
            "install the same build on all nodes"
        )
    for text in texts:
        text["quota"] = CpuQuota(**text["quota"]) if text["quota"] else None
    return [RankSettings(**text) for text in texts]


def agree(ranks: Sequence[RankSettings]) -> Settings:
    """Derive the settings that all ranks share, except for the cores of a node.

    Raises: UserError, on every rank, with the values of the ranks that disagree.
    """
    name_of = _labels([own.host for own in ranks]).short
    for rank, own in enumerate(ranks):
        if own.problem is not None:
            raise UserError(f"on rank {name_of(rank)} {own.problem}")
    _check_same(LINK, [own.link for own in ranks], name_of)
    _check_same(VARIABLE, [own.all_reduce for own in ranks], name_of)
    try:
        all_reduce = requested_algorithm({VARIABLE: ranks[0].all_reduce or ""})
    except ValueError as error:
        raise UserError(str(error)) from None
    return Settings(
        all_reduce=all_reduce,
        check=any(own.check for own in ranks),
        is_gpu_aware=all(own.gpu_aware for own in ranks),
        cache_bytes=min(own.cache_bytes for own in ranks),
    )


def cores_of(ranks: Sequence[RankSettings]) -> int:
    """The cores that ranks of one node have together."""
    return shared_cores([own.affinity for own in ranks], [own.quota for own in ranks])


def _labels(hosts: Sequence[str]) -> RankLabels:
    return RankLabels(members=tuple(range(len(hosts))), hosts=hosts_to_name(hosts))


def _check_same(name: str, values: Sequence[str | None], name_of: Callable[[int], str]) -> None:
    if len(set(values)) > 1:
        shown = ["not set" if value is None else repr(value) for value in values]
        described = _who_has(shown, name_of)
        raise UserError(
            f"{name} differs among the ranks: {described}; set the same value on all ranks (Open "
            "MPI exports variables with -x, MPICH and Intel MPI with -genvlist)"
        )


def _who_has(values: Sequence[str], name_of: Callable[[int], str]) -> str:
    """The ranks of each value, as "'ring' on rank 0, not set on ranks 1, 2, 3 and 12 others"."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on {_listed(some, name_of)}" for value, some in ranks.items())


def _listed(ranks: Sequence[int], name_of: Callable[[int], str], most: int = 8) -> str:
    listed = ", ".join(name_of(rank) for rank in ranks[:most])
    more = f" and {len(ranks) - most} others" if len(ranks) > most else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"
