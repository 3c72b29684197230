"""What batch systems say of their nodes."""

import os
import socket
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.jobs.allocation import (
    FORMER_HOST_FILE,
    HOST_FILE,
    HOSTS,
    Allocation,
    Node,
    allocation,
    check_ranks,
    describe_idle_nodes,
    describe_unread_host_file,
    describe_unused_nodes,
    expand_names,
    is_this_machine,
    parse_hosts,
    read_host_file,
    use_hosts,
)


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({}, []),
        ({"SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_JOB_NUM_NODES": "3"}, [4, 4, 3]),
        ({"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NNODES": "2"}, [1, 1]),
        ({"SLURM_JOB_NUM_NODES": "3"}, [1, 1, 1]),
        ({"SLURM_TASKS_PER_NODE": "8"}, [8]),
        ({"LSB_MCPU_HOSTS": "n0 4 n1 2"}, [4, 2]),
        ({"PBS_NODEFILE": "n0\nn0\nn1\n"}, [2, 1]),
        ({"PBS_NODEFILE": None}, []),
        ({"HYDRA_HOST_FILE": "# all\nn0:2\nn1\n\n"}, [2, 1]),
        ({"PRTE_MCA_prte_default_hostfile": "n0 slots=2 # fast\nn1 slots = 3\nn0\n"}, [3, 3]),
        ({"OMPI_MCA_orte_default_hostfile": "pod-0 slots=2\npod-1 slots=2\n"}, [2, 2]),
        ({"HYDRA_HOST_FILE": "n0:2\n", "I_MPI_HYDRA_HOST_FILE": "n0:2\n"}, [2]),  # one file
    ],
)
def test_slots(environ, slots, tmp_path: Path) -> None:
    found = {}
    for name, text in environ.items():
        if "FILE" in name.upper():
            file = tmp_path / "nodes"
            if text is not None:
                file.write_text(text)
            text = str(file)
        found[name] = text
    assert allocation(found).slots == slots


@pytest.mark.parametrize(
    ("ranks", "slots", "local"),
    [
        (4, [], 4),
        (2, [1, 1], 1),
        (3, [2, 2], 2),
        (2, [4, 4], 2),
        (6, [2, 2], 3),
        (5, [2, 4], 3),
        (1, [8], 1),
    ],
)
def test_the_fullest_node(ranks: int, slots: list[int], local: int) -> None:
    nodes = tuple(Node(f"n{number}", here) for number, here in enumerate(slots))
    assert Allocation(nodes, "").max_local_ranks(ranks) == local


@pytest.mark.parametrize(
    ("num_nodes", "ranks", "library", "is_refused"),
    [
        (1, 4, "Open MPI v5.0.11", True),
        (2, 4, "Open MPI v5.0.11", False),
        (1, 2, "Open MPI v5.0.11", False),  # slots are filled host by host
        (1, 8, "Open MPI v5.0.11", True),
        (1, 4, "Open MPI v4.1.6", False),
        (1, 4, "MPICH Version: 5.0.2", False),
    ],
)
def test_a_host_file_that_open_mpi_does_not_read_any_more(
    tmp_path: Path, num_nodes: int, ranks: int, library: str, is_refused: bool
) -> None:
    """Names of the MPI Operator: all ranks ran on the launcher's own pod, and nobody said so."""
    file = tmp_path / "hostfile"
    file.write_text("pod-0 slots=2\npod-1 slots=2\n")
    environ = {FORMER_HOST_FILE: str(file)}
    text = describe_unread_host_file(num_nodes, ranks, library, environ)
    assert (text is not None) == is_refused
    if text:
        assert f"names 2 hosts, but the {ranks} ranks are on 1" in text
    known = environ | {HOST_FILE: str(file)}
    assert describe_unread_host_file(num_nodes, ranks, library, known) is None


def test_hosts_come_before_an_allocation(tmp_path: Path) -> None:
    environ = {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n[09-11]", "SLURM_NNODES": "3"}
    assert allocation(environ).describe(2) == "2 ranks on n09, n10 (Slurm job 8)"
    use_hosts("a:2,b", None, environ)
    found = allocation(environ)
    assert (found.nodes, found.is_named) == ((Node("a", 2), Node("b", 1)), True)
    with pytest.raises(UserError, match="--ranks 5: --hosts has 3 slots: a:2, b:1; name more"):
        check_ranks(5, environ)
    assert found.describe(5) == "5 ranks on a, b (--hosts)"
    assert found.used(5) == [("a", 3), ("b", 2)]
    file = tmp_path / "hosts"
    file.write_text("n0 slots=2\nn1:3\n")
    use_hosts(None, file, environ)
    assert environ[HOSTS] == "n0:2,n1:3"
    assert allocation(environ).describe(3) == f"3 ranks on n0, n1 (--hostfile {file})"
    assert allocation({HOSTS: "a:1,b:1"}).describe(2) == "2 ranks on a, b (PHALANX_HOSTS)"
    with pytest.raises(UserError, match=r"PHALANX_HOSTS: .a:0. is not a host; write PHALANX_HOS"):
        allocation({HOSTS: "a:0"})


@pytest.mark.parametrize("text", ["n0:x", "n0:0", ",", "n 0:", "n0:1:2"])
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match=r"--hosts: .* is not a host; write --hosts|names no host"):
        parse_hosts(text)


def test_a_user_of_another_name_belongs_to_ssh() -> None:
    """The form of a host was named, which "bob@n1" is to who writes it."""
    with pytest.raises(
        UserError, match=r"'bob@n1:2' is not a host; put the user's name .*~/.ssh/config"
    ):
        parse_hosts("n0,bob@n1:2")


def test_names_in_short() -> None:
    assert expand_names("n[0-2,7],m1,r[08-10]x") == [
        *("n0", "n1", "n2", "n7", "m1"),
        *("r08x", "r09x", "r10x"),
    ]
    assert expand_names("a,b[1-2]")[0] == "a"
    assert expand_names("n[03,07]-ib,m1") == ["n03-ib", "n07-ib", "m1"]
    assert expand_names("r[1-2]n[1-4]") == expand_names("") == []


def test_hostfiles_in_every_dialect(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(
        "# four nodes\nn0 slots=2 max-slots=4\nn1:3 # of MPICH\n\nn2.site.org\nn0\n"
        "n3 max_slots = 4 slots = 2\n"
    )
    assert read_host_file(file) == (
        *(Node("n0", 3), Node("n1", 3), Node("n2.site.org", 1), Node("n3", 2)),
    )
    for line, why in {
        "n0 slot=2": "line 2: 'n0 slot=2' is not a host",
        "n0 slots=x": "slots are 1 or more",
        "n0:0": "slots are 1 or more",
        "me@n0": "line 2: 'me@n0' is not a host.*; put the user's name into ~/.ssh/config",
    }.items():
        file.write_text(f"n1\n{line}\n")
        with pytest.raises(UserError, match=why):
            read_host_file(file)
    file.write_text("# nothing\n")
    with pytest.raises(UserError, match="names no host"):
        read_host_file(file)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UserError, match="fifo is not a regular file"):
        read_host_file(tmp_path / "fifo")


def test_names_and_addresses_of_this_machine() -> None:
    assert is_this_machine("localhost")
    assert is_this_machine("127.0.0.1")
    assert is_this_machine(socket.gethostname())
    assert not is_this_machine("192.0.2.7")  # of documentation
    assert not is_this_machine("elsewhere.invalid")


def test_ranks_that_are_all_on_one_of_several_nodes(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("a\nb\n")
    pbs = {"PBS_NODEFILE": str(file), "PBS_JOBID": "7"}
    text = describe_unused_nodes(1, 2, pbs)
    assert text is not None
    assert text.startswith("PBS job 7 names 2 nodes for 2 ranks, but all ranks are on one")
    assert text.endswith("mpirun -H a:1,b:1; or unset PBS_NODEFILE")
    assert describe_unused_nodes(2, 2, pbs) is None
    assert describe_unused_nodes(1, 1, pbs) is None
    environ = {HOSTS: "elsewhere.invalid:2,b:1"}
    named = describe_unused_nodes(1, 3, environ)
    assert named is not None
    assert named.startswith("PHALANX_HOSTS names 2 nodes for 3 ranks")
    slurm = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "a,b"}
    assert describe_unused_nodes(1, 2, slurm) is None
    assert describe_unused_nodes(1, 2, {HOSTS: "localhost:1,127.0.0.1:1"}) is None


def test_more_ranks_than_slurm_has_granted() -> None:
    job = {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_NUM_NODES": "2"}
    job |= {"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}
    check_ranks(4, job)  # a rank for each CPU
    with pytest.raises(UserError, match=r"--ranks 5: Slurm job 8 has 2 tasks and 4 CPUs on 2 node"):
        check_ranks(5, job)
    one = {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n0", "SLURM_TASKS_PER_NODE": "1"}
    check_ranks(5, {**job, **one})  # as on this machine without Slurm


def test_a_step_on_fewer_nodes_than_the_job_has() -> None:
    step = {"SLURM_JOB_ID": "8", "SLURM_JOB_NUM_NODES": "3", "SLURM_STEP_NUM_NODES": "1"}
    assert describe_idle_nodes({**step, "SLURM_STEP_NUM_TASKS": "3"}) == (
        "the 3 ranks are on 1 of the 3 nodes of Slurm job 8; to use all: srun --nodes=3"
    )
    assert describe_idle_nodes({**step, "SLURM_STEP_NUM_TASKS": "1"}) is None
    full = {"SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "6"}
    assert describe_idle_nodes({**step, **full}) is None
    assert describe_idle_nodes({}) is None
