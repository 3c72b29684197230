"""The variables that PyTorch programs read, for ranks that an MPI launcher started."""

import pytest

from phalanx.jobs.variables import (
    ENABLE_VARIABLE,
    MARKER_VARIABLE,
    is_users,
    set_variables,
)
from tests.jobs.test_detect import BARE, HYDRA, ONE_TASK, OPENMPI, PMI2, SRUN, TORCHRUN

ONE_NODE = OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-vm-7@1"}
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def after(environ: dict[str, str]) -> dict[str, str]:
    """Those of NAMES that are set in the end."""
    environ = dict(environ)
    set_variables(environ)
    return {name: environ[name] for name in NAMES if name in environ}


def test_one_node() -> None:
    found = after(ONE_NODE)
    port = int(found.pop("MASTER_PORT"))
    assert 20_000 <= port < 30_000
    assert found == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
    }


def test_ranks_of_a_job_agree_on_the_port_and_jobs_differ() -> None:
    other_rank = ONE_NODE | {"OMPI_COMM_WORLD_RANK": "3"}
    other_job = ONE_NODE | {"PMIX_NAMESPACE": "prterun-vm-8@1"}
    assert after(other_rank)["MASTER_PORT"] == after(ONE_NODE)["MASTER_PORT"]
    assert after(other_job)["MASTER_PORT"] != after(ONE_NODE)["MASTER_PORT"]


def test_several_nodes() -> None:
    """Only Slurm names the first node; Open MPI and Hydra leave the address to the user."""
    assert "MASTER_ADDR" not in after(OPENMPI)
    assert "MASTER_ADDR" not in after(HYDRA | {"MPI_LOCALNRANKS": "1"})
    found = after(SRUN | PMI2 | {"SLURM_STEP_NODELIST": "n[07-09,12]"})
    assert found["MASTER_ADDR"] == "n07"
    assert found["LOCAL_RANK"] == "1"
    assert found["LOCAL_WORLD_SIZE"] == "2"
    assert "MASTER_PORT" in found


@pytest.mark.parametrize("environ", [{}, BARE, TORCHRUN, ONE_NODE | TORCHRUN, SRUN, ONE_TASK])
def test_nothing_is_set_where_no_mpi_launcher_is_innermost(environ: dict[str, str]) -> None:
    changed = dict(environ)
    set_variables(changed)
    assert changed == environ


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_a_users_numbering_is_not_completed(name: str) -> None:
    changed = ONE_NODE | {name: "1"}
    set_variables(changed)
    assert changed == ONE_NODE | {name: "1"}


def test_a_users_address_stays() -> None:
    found = after(ONE_NODE | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"})
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.7", "29500")
    assert found["RANK"] == "2"


def test_a_users_variables_are_told_from_our_own() -> None:
    environ = dict(ONE_NODE)
    assert not is_users("MASTER_ADDR", environ)
    set_variables(environ)
    assert not is_users("MASTER_ADDR", environ)
    assert is_users("MASTER_ADDR", environ | {"MASTER_ADDR": "10.0.0.7"})
    environ = ONE_NODE | {"MASTER_ADDR": "127.0.0.1"}
    set_variables(environ)
    assert is_users("MASTER_ADDR", environ)


def test_the_switch() -> None:
    assert after(ONE_NODE | {ENABLE_VARIABLE: "0"}) == {}


def test_a_child_of_a_rank_has_the_same_and_a_job_below_it_its_own() -> None:
    rank = dict(ONE_NODE)
    set_variables(rank)
    child = dict(rank)
    set_variables(child)
    assert child == rank
    inner = rank | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    inner |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "prterun-vm-9@1"}
    set_variables(inner)
    assert (inner["RANK"], inner["WORLD_SIZE"]) == ("0", "1")
    assert inner["MASTER_PORT"] != rank["MASTER_PORT"]


def test_what_a_rank_has_changed_stays_in_its_children() -> None:
    rank = dict(ONE_NODE)
    set_variables(rank)
    rank |= {"RANK": "0", "WORLD_SIZE": "1"}  # a program of its own, for a child
    set_variables(rank)
    assert (rank["RANK"], rank["WORLD_SIZE"]) == ("0", "1")
    assert rank.get(MARKER_VARIABLE) is None
