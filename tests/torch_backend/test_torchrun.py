"""Backend mpi under torchrun on one node: ranks that no MPI knows of."""

from pathlib import Path

import pytest

from phalanx.comm.sockets.meeting import Address
from phalanx.torch_backend.rendezvous import check_one_node
from tests.conftest import Programs, Ranks, done
from tests.torch_backend.test_start import run_in_fork

pytestmark = pytest.mark.mpi


def test_groups_and_messages(new_ranks: Ranks, programs: Programs) -> None:
    output = new_ranks.torchrun(3, programs("torchrun.py"))
    assert done(output, 3)
    assert output.count("refused: ") == 3


def test_engines(ranks: Ranks, request: pytest.FixtureRequest) -> None:
    """DDP, FSDP and pipelines as in test_engines.py, which trains them by MPI."""
    program = request.path.parent / "engines" / "programs" / "several.py"
    assert done(ranks.torchrun(3, program, "ddp", "sharded", "pipelines"), 3)


def test_every_collective_without_shared_memory(ranks: Ranks, programs: Programs) -> None:
    environment = {"PHALANX_KERNELS": "arrays"}
    assert done(ranks.torchrun(2, programs("conformance.py"), environment=environment), 2)


@pytest.mark.parametrize("way", ["raise", "die"])
def test_a_failed_rank_ends_the_job(ranks: Ranks, programs: Programs, way: str) -> None:
    output = ranks.torchrun(3, programs("failing.py"), way, may_fail=True, timeout_s=60)
    assert "ChildFailedError" in output
    assert not done(output, 3)
    if way == "raise":
        assert "ValueError: the data of rank 1 is broken" in output


def test_ranks_of_a_program_of_ones_own(programs: Programs, tmp_path: Path) -> None:
    assert done(run_in_fork(programs("spawned.py"), str(tmp_path / "store")), 2)


def test_several_nodes_are_refused_with_the_command_that_works() -> None:
    names = [("n0", "a"), ("n0", "a"), ("n1", "b"), ("n1", "b")]
    addresses = [Address(host=host, machine=machine, name="", word="") for host, machine in names]
    check_one_node(addresses[:2])
    with pytest.raises(RuntimeError, match=r"mpiexec -n 4 -host n0:2,n1:2 python") as caught:
        check_one_node(addresses)
    assert "torchrun started 4 ranks on 2 nodes" in str(caught.value)
