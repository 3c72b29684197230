"""The command lines, word for word."""

import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.jobs import shield as shield_program
from phalanx.jobs.command import (
    exported_variables,
    local_commands,
    memory_variables,
    mpi_environment,
    mpi_job,
)
from phalanx.jobs.installation import MpiInstallation

PROGRAM = ["python", "-m", "program"]
OPENMPI = {"OMPI_MCA_osc": "^ucx", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr("phalanx.jobs.command.usable_cores", lambda: 2)


def installed(vendor):
    return MpiInstallation(vendor=vendor, version="1", mpiexec=Path("/bin/mpiexec"), source="path")


@pytest.mark.parametrize(
    ("vendor", "as_root", "words"),
    [
        ("openmpi", False, "--bind-to none --map-by :OVERSUBSCRIBE"),
        ("openmpi", True, "--bind-to none --map-by :OVERSUBSCRIBE --allow-run-as-root"),
        ("mpich", True, "-bind-to none"),
        ("impi", True, ""),
        ("other", True, ""),
    ],
)
def test_command_lines(monkeypatch, vendor, as_root, words):
    monkeypatch.setattr("os.geteuid", lambda: 0 if as_root else 1000)
    command = mpi_job(installed(vendor), 3, PROGRAM, environ={})
    assert command.words == ("/bin/mpiexec", *words.split(), "-n", "3", *PROGRAM)


@pytest.mark.parametrize(
    ("vendor", "ranks", "environment"),
    [
        ("openmpi", 2, OPENMPI),
        ("openmpi", 3, OPENMPI | {"OMPI_MCA_mpi_yield_when_idle": "1"}),
        ("mpich", 3, {}),
        ("impi", 2, {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}),
        ("impi", 3, {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "2"}),
        ("other", 3, {}),
    ],
)
def test_environments_on_two_cores(vendor, ranks, environment):
    assert mpi_environment(vendor, ranks, cores=2, environ={}) == environment


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_NUM_NODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)"},
        {"SLURM_JOB_NUM_NODES": "2"},
        {"LSB_MCPU_HOSTS": "n0 2 n1 2"},
    ],
)
def test_an_allocation_of_several_nodes_needs_a_network(environ):
    """All MPI calls failed there: ranks on two nodes were left with shared memory alone."""
    openmpi = mpi_environment("openmpi", 4, cores=2, environ=environ)
    assert not {"OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mpi_yield_when_idle"} & set(openmpi)
    assert openmpi["PRTE_MCA_oob_tcp_keepalive_time"] == "2"
    assert mpi_environment("impi", 4, cores=2, environ=environ) == {"I_MPI_PIN": "0"}
    crowded = mpi_environment("openmpi", 6, cores=2, environ=environ)
    assert "OMPI_MCA_mpi_yield_when_idle" not in crowded  # each rank knows its node's cores


def test_what_the_user_has_set_stays():
    user = dict.fromkeys(OPENMPI, "mine") | {"HOME": "/"}
    assert mpi_environment("openmpi", 2, cores=2, environ=user) == {}


@pytest.mark.parametrize(
    ("vendor", "death_signal"),
    [("openmpi", signal.SIGTERM), ("mpich", signal.SIGKILL), ("impi", signal.SIGKILL)],
)
def test_a_job_is_one_command(vendor, death_signal):
    command = mpi_job(installed(vendor), 2, PROGRAM, environ={})
    assert command.words[-5:] == ("-n", "2", *PROGRAM)
    assert command.death_signal == death_signal


def test_what_starts_ranks_in_a_batch_system_outlives_its_sigterm(tmp_path: Path) -> None:
    """Slurm sends it to all of a job: Open MPI's launcher killed the ranks before they saved."""
    environ = {"SLURM_JOB_NUM_NODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "8"}
    (tmp_path / "prted").touch()
    mpi = replace(installed("openmpi"), mpiexec=tmp_path / "mpiexec")
    command = mpi_job(mpi, 2, PROGRAM, environ=environ)
    shield = [sys.executable, "-I", "-S", shield_program.__file__]
    assert list(command.words[:5]) == [*shield, str(tmp_path / "mpiexec")]
    assert command.death_signal == command.end_signal == signal.SIGINT
    daemon = " ".join([*shield, str(tmp_path / "prted")])
    assert command.environment["PRTE_MCA_prte_launch_agent"] == daemon
    named = mpi_job(mpi, 2, PROGRAM, environ={**environ, "PHALANX_HOSTS": "a.invalid"})
    assert "PRTE_MCA_prte_launch_agent" not in named.environment, "these are reached by ssh"
    for other in (
        mpi_job(mpi, 2, PROGRAM, environ={}),
        mpi_job(installed("mpich"), 2, PROGRAM, environ=environ),
    ):
        assert Path(other.words[0]).name == "mpiexec" and other.end_signal == signal.SIGTERM


def test_a_shielded_command_ignores_sigterm_alone(tmp_path: Path) -> None:
    """Its children must not inherit that: Open MPI's launcher unblocks all signals for them."""
    program = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    words = [sys.executable, shield_program.__file__, sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "{<Signals.SIGTERM: 15>}\n"


def test_local_ranks_know_who_they_are():
    commands = local_commands(2, PROGRAM, environ={})
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    assert [command.environment for command in commands] == [
        shared | {"RANK": "0", "LOCAL_RANK": "0"},
        shared | {"RANK": "1", "LOCAL_RANK": "1"},
    ]
    assert all(command.words == tuple(PROGRAM) for command in commands)


def test_the_interface_that_the_user_chose_stays():
    (command,) = local_commands(1, PROGRAM, environ={"GLOO_SOCKET_IFNAME": "eth0"})
    assert "GLOO_SOCKET_IFNAME" not in command.environment


def test_huge_pages_are_asked_for_unless_the_user_has_set_malloc():
    assert memory_variables({}) == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert memory_variables({"GLIBC_TUNABLES": ""}) == {}


def test_names_of_open_mpi_4_are_translated(tmp_path: Path) -> None:
    """The MPI Operator of Kubernetes sets them still."""
    file = tmp_path / "hostfile"
    file.write_text("pod-0 slots=1\npod-1 slots=1\n")
    environ = {
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
        "OMPI_MCA_orte_default_hostfile": str(file),
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    }
    found = mpi_environment("openmpi", 2, cores=2, environ=environ)
    assert found["PRTE_MCA_plm_ssh_agent"] == "/etc/mpi/kubexec.sh"
    assert found["PRTE_MCA_prte_default_hostfile"] == str(file)
    assert found["PRTE_MCA_prte_keep_fqdn_hostnames"] == "true"
    assert "OMPI_MCA_btl" not in found
    own = environ | {"PRTE_MCA_plm_ssh_agent": "ssh"}
    assert "PRTE_MCA_plm_ssh_agent" not in mpi_environment("openmpi", 2, cores=2, environ=own)
    assert set(mpi_environment("mpich", 2, cores=2, environ=environ)) == {
        "HYDRA_LAUNCHER_EXTRA_ARGS"
    }


def words_on(vendor, ranks, hosts, **environ):
    environ = {"PHALANX_HOSTS": hosts, **environ}
    command = mpi_job(installed(vendor), ranks, ["p"], environ=environ)
    return " ".join(command.words), command.environment


@pytest.mark.parametrize(
    ("vendor", "ranks", "hosts", "expected"),
    [
        ("openmpi", 3, "a:2,b:2", "-H a:2,b:1 -n 3 p"),
        ("mpich", 3, "a:2,b:2", "-hosts a:2,b:1 -n 3 p"),
        ("impi", 3, "a:2,b:2", "-hosts a,b -ppn 2 -n 3 p"),
        ("impi", 3, "a:1,b:2", "-host a -n 1 p : -host b -n 2 p"),
        ("impi", 2, "a:2,b:2", "-hosts a -ppn 2 -n 2 p"),
    ],
)
def test_nodes_that_the_user_names(vendor, ranks, hosts, expected):
    words, environment = words_on(vendor, ranks, hosts)
    assert words.endswith(f" {expected}")
    assert sum("ServerAliveInterval" in value for value in environment.values()) == 1
    assert not {"I_MPI_FABRICS", "OMPI_MCA_btl"} & set(environment) or ranks == 2
    assert ("-x PYTHON*" in words) == (vendor == "openmpi")


def test_open_mpi_reaches_all_nodes_itself_as_its_daemons_cannot_take_options_of_ssh():
    assert "PRTE_MCA_rml_base_radix" not in words_on("openmpi", 64, hosts_named(64))[1]
    assert words_on("openmpi", 70, hosts_named(70))[1]["PRTE_MCA_rml_base_radix"] == "70"


def hosts_named(count):
    return ",".join(f"node{number}:1" for number in range(count))


@pytest.mark.parametrize("hosts", ["localhost:2", "127.0.0.1", socket.gethostname() + ":1"])
def test_this_machine_by_name_is_this_machine(hosts):
    ranks = int(hosts.partition(":")[2] or 1)
    words, environment = words_on("openmpi", ranks, hosts)
    assert f"-H localhost:{ranks}" in words
    assert "-x" not in words
    assert environment == OPENMPI
    assert "-launcher fork -n" in words_on("mpich", ranks, hosts)[0]
    assert words_on("impi", ranks, hosts)[1]["I_MPI_FABRICS"] == "shm"


def test_a_batch_system_starts_what_it_granted_and_ssh_the_rest():
    slurm = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_ID": "8"}
    assert "HYDRA_LAUNCHER_EXTRA_ARGS" not in words_on("mpich", 2, "a,b", **slurm)[1]
    others = words_on("mpich", 2, "a,c", **slurm)[1]
    assert others["HYDRA_LAUNCHER"] == "ssh"
    assert "ServerAliveInterval" in others["HYDRA_LAUNCHER_EXTRA_ARGS"]
    assert words_on("openmpi", 2, "c,d", **slurm)[1]["PRTE_MCA_plm"] == "ssh"


def test_an_allocation_that_no_launcher_reads_is_named_to_it(tmp_path):
    file = tmp_path / "nodes"
    file.write_text("a\na\nb\n")
    environ = {"PBS_NODEFILE": str(file)}
    command = mpi_job(installed("openmpi"), 3, ["p"], environ=environ)
    assert " ".join(command.words).endswith("-H a:2,b:1 -n 3 p")
    environ = {"LSB_MCPU_HOSTS": "a 2 b 2"}
    command = mpi_job(installed("mpich"), 4, ["p"], environ=environ)
    assert " ".join(command.words).endswith("-hosts a:2,b:2 -n 4 p")


def test_an_agent_of_the_user_gets_no_options_of_ssh():
    environ = {"PHALANX_HOSTS": "a,b", "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}
    found = mpi_environment("openmpi", 2, cores=2, environ=environ)
    assert found["PRTE_MCA_plm_ssh_agent"] == "/etc/mpi/kubexec.sh"
    assert "PRTE_MCA_plm_ssh_args" not in found


def test_variables_go_along_but_those_of_this_machine():
    of_the_user = dict.fromkeys(("HOME", "USER", "LOGNAME", "SHELL"), "of another one there")
    names = exported_variables(
        {"MY_DATA": "/d", "SLURM_JOB_ID": "1", "OMPI_X": "", "TERM": "", "PHALANX_X": "", "a%": ""}
        | of_the_user
    )
    assert names[-1] == "MY_DATA"
    assert "PHALANX_*" in names
    assert not {"SLURM_JOB_ID", "OMPI_X", "TERM", "PHALANX_X", "a%", *of_the_user} & set(names)
