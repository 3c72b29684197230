"""Fixtures: virtual nodes for tests, with the MPI of this environment, and with Slurm."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.jobs.installation import find_mpi
from tests.nodes import cluster
from tests.nodes import slurm as with_slurm
from tests.nodes.cluster import virtual_nodes
from tests.nodes.mpi_nodes import INSTALLED, ROOT, Nodes
from tests.nodes.slurm import Slurm

MakeNodes = Callable[..., AbstractContextManager[Nodes]]


@cache
def reason_to_skip() -> str | None:
    """Return why tests on virtual nodes cannot run here; None if they can."""
    try:
        find_mpi(os.environ)
    except UserError as error:
        return str(error)
    return cluster.missing()


@pytest.fixture(scope="module")
def make_nodes(tmp_path_factory: pytest.TempPathFactory) -> MakeNodes:
    """Function that starts virtual nodes: `with make_nodes(2, rate="1gbit") as nodes`."""
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)

    @contextmanager
    def make(count: int, *, names_resolve: bool = True, rate: str | None = None) -> Iterator[Nodes]:
        with virtual_nodes(
            count,
            tmp_path_factory.mktemp("nodes") / "state",
            keep=[ROOT, Path(sys.prefix)],
            environment=INSTALLED,
            names_resolve=names_resolve,
            rate=rate,
        ) as made:
            yield Nodes(**vars(made), mpi=find_mpi(os.environ))

    return make


@pytest.fixture(scope="module")
def nodes(make_nodes: MakeNodes) -> Iterator[Nodes]:
    """Three virtual nodes, which the tests of a file share: none may end or cut one."""
    with make_nodes(3) as made:
        yield made


@pytest.fixture(scope="module")
def slurm(make_nodes: MakeNodes) -> Iterator[Slurm]:
    """Three virtual nodes of two CPUs each on which Slurm runs."""
    reason = with_slurm.missing()
    if reason is not None:
        pytest.skip(reason)
    with make_nodes(3) as made:
        started = Slurm(**vars(made))
        started.start_daemons()
        yield started
