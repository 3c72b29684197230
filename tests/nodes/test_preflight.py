"""The examination of nodes before ranks are started on them: what is said, and what is left."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from tests.nodes.mpi_nodes import INSTALLED, Nodes

pytestmark = pytest.mark.nodes
WITHIN_S = 10.0
ANOTHER_PYTHON = "import platform; platform.python_version = lambda: '3.10.2'"
NO_PHALANX = "import sys; sys.modules['phalanx'] = None"
NO_LINKS = """
import sys
if "phalanx.doctor.nodes.survey" in sys.orig_argv:
    import phalanx.comm.pairs
    def measure_pairs(ranks):
        raise RuntimeError("no link")
    phalanx.comm.pairs.measure_pairs = measure_pairs
"""


def launch(nodes: Nodes, hosts: str, *words: str, folder: str = "/mnt/scratch") -> tuple[int, str]:
    """Run `phalanx launch` on n0; return its exit code and output."""
    phalanx = f"{sys.executable} -m phalanx"
    line = f"cd {folder} && {phalanx} launch --hosts {hosts} {' '.join(words) or 'hostname'}"
    began = time.monotonic()
    done = nodes.run("n0", ["sh", "-c", line], environment=INSTALLED, timeout_s=60 * PATIENCE)
    if done.returncode == 2:
        assert time.monotonic() - began < WITHIN_S * PATIENCE, done.stdout
    return done.returncode, done.stdout


def shell(nodes: Nodes, node: str, line: str) -> str:
    done = nodes.run(node, ["sh", "-c", line])
    assert done.returncode == 0, done.stdout
    return done.stdout


@contextmanager
def python_runs_first(nodes: Nodes, node: str, line: str) -> Iterator[None]:
    """Let the Python of a node run `line` first: a script takes its place."""
    site, python = nodes.shared / "site", Path(sys.executable).resolve()
    site.mkdir()
    (site / "sitecustomize.py").write_text(line)
    (site / "real").touch()
    (site / "python").write_text(
        "#!/bin/bash\n"
        f"export PYTHONPATH={site}:$PYTHONPATH LD_LIBRARY_PATH={python.parents[1]}/lib\n"
        f'exec -a "$0" {site}/real "$@"\n'
    )
    (site / "python").chmod(0o755)
    shell(nodes, node, f"mount --bind {python} {site}/real && mount --bind {site}/python {python}")
    try:
        yield
    finally:
        shell(nodes, node, f"umount {python} {site}/real")
        shutil.rmtree(site)


def test_nodes_that_cannot_be_reached_are_all_named(nodes: Nodes) -> None:
    keys = "/root/.ssh/authorized_keys"
    shell(nodes, "n1", f"mv {keys} {keys}.off")
    known = "/root/.ssh/known_hosts"
    shell(nodes, "n0", f"cp {known} {known}.all; grep -v n2 {known}.all > {known}")
    code, said = launch(nodes, "n0,n1,n2,nowhere,10.77.0.99")
    shell(nodes, "n1", f"mv {keys}.off {keys}")
    shell(nodes, "n0", f"mv {known}.all {known}")
    first, *lines = said.splitlines()[1:]
    assert (code, first) == (2, "phalanx: the nodes cannot run this:")
    assert [line.split(": ")[0].strip() for line in lines] == ["n1", "n2", "nowhere", "10.77.0.99"]
    assert "Permission denied" in lines[0]
    assert lines[0].endswith("; fix: ssh-copy-id n1")
    assert lines[1].endswith("; fix: ssh n2 true, once, and accept its key")
    assert "resolve hostname nowhere" in lines[2]
    assert "No route to host" in lines[3] or "timed out" in lines[3]
    assert shell(nodes, "n0", "ls -A /mnt/scratch") == ""


def test_nodes_that_lack_something_are_all_named(nodes: Nodes) -> None:
    shell(nodes, "n0", "mkdir -p /mnt/scratch/here")
    shell(nodes, "n1", "mkdir -p /mnt/scratch/here")
    with python_runs_first(nodes, "n1", ANOTHER_PYTHON):
        code, said = launch(nodes, "n0,n1,n2", folder="/mnt/scratch/here")
    assert code == 2
    assert f"n1: {sys.executable} is Python 3.10.2 there, " in said
    assert "n2: has no /mnt/scratch/here; fix: ssh n2 mkdir -p /mnt/scratch/here, or " in said
    for node in ("n0", "n1"):
        assert shell(nodes, node, "ls -A /mnt/scratch/here; rmdir /mnt/scratch/here") == ""
    with python_runs_first(nodes, "n1", NO_PHALANX):
        code, said = launch(nodes, "n0,n1")
    assert code == 2
    assert f'n1: has no Phalanx for {sys.executable}; fix: ssh n1 "{sys.executable} -m' in said
    shell(nodes, "n1", f"mount --bind /dev/null {Path(sys.executable).resolve()}")
    code, said = launch(nodes, "n0,n1")
    shell(nodes, "n1", f"umount {Path(sys.executable).resolve()}")
    assert code == 2
    assert f'n1: has no {sys.executable}; fix: ssh n1 "python3' in said
    assert f"-m venv {sys.prefix} && {sys.executable} -m pip install 'phalanx" in said
    assert shell(nodes, "n0", "ls -A /mnt/scratch") == ""


def test_nodes_that_are_well_are_described_in_a_line(nodes: Nodes) -> None:
    code, said = launch(nodes, "n0,n1,n2", "--log-dir", f"{nodes.shared}/log", "hostname")
    assert code == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith("phalanx: 3 nodes: ")]
    assert f"same Python {sys.version.split()[0]}, torch " in line
    assert f", {nodes.mpi}; " in line
    assert "bit/s, " in line
    assert line.endswith(" ms")
    code, said = launch(nodes, "n0,n1", "--log-dir", "/mnt/scratch/log", "hostname")
    assert "; /mnt/scratch/log is not shared" in said
    assert [shell(nodes, node, "ls -A /mnt/scratch") for node in ("n0", "n1")] == ["log\n", ""]


def test_ranks_that_do_not_meet_end_the_job_beside_which_they_are_started(nodes: Nodes) -> None:
    with python_runs_first(nodes, "n1", NO_LINKS):
        folder = f"{nodes.shared}/apart"
        code, said = launch(nodes, "n0,n1", "--log-dir", folder, "sleep", "600")
    assert code == 2, said
    assert f"MPI: {nodes.mpi} does not connect the nodes: " in said
    assert not {node: found for node in nodes.nodes if (found := nodes.processes(node))}


def test_networks_that_lead_nowhere_are_left_out(nodes: Nodes) -> None:
    """Every MPI waited for ever, also for Docker's bridge, which has one address everywhere."""
    for number, node in enumerate(nodes.nodes):
        for name, address in (("docker9", "172.31.0.1/16"), ("dead9", f"10.78.9.{number + 1}/24")):
            shell(nodes, node, f"ip link add {name} type bridge && ip link set {name} up")
            shell(nodes, node, f"ip address add {address} dev {name}")
    try:
        code, said = launch(nodes, "n0,n1", "--log-dir", f"{nodes.shared}/nets", "hostname")
    finally:
        for node in nodes.nodes:
            shell(nodes, node, "ip link del docker9; ip link del dead9")
    assert code == 0, said
    (line,) = [line for line in said.splitlines() if "does not answer" in line]
    assert "n0: its dead9 (10.78.9.1, network 10.78.9.0/24) does not answer n1; left out" in line
    assert "172.31" not in said


def test_doctor_examines_the_nodes(nodes: Nodes) -> None:
    doctor = [sys.executable, "-m", "phalanx", "doctor", "--json"]
    done = nodes.run(
        "n0",
        [*doctor, "--hosts", "n0,n1,10.77.0.99"],
        environment=INSTALLED,
        timeout_s=100 * PATIENCE,
    )
    assert done.returncode == 1, done.stdout
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert found["ranks"]["detail"].startswith("2 started")  # on this machine
    assert found["n1"]["status"] == "ok"
    assert f"Python {sys.version.split()[0]}, phalanx " in found["n1"]["detail"]
    assert "eth0 10.77.0.2" in found["n1"]["detail"]
    assert found["10.77.0.99"]["status"] == "problem"


def test_one_doctor_of_all_ranks(nodes: Nodes) -> None:
    doctor = [sys.executable, "-m", "phalanx", "doctor", "--json"]
    done = nodes.run(
        "n0",
        nodes.mpiexec(doctor, local_ranks=2),
        environment=INSTALLED,
        timeout_s=100 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    findings = json.loads(done.stdout[done.stdout.index("[\n") :])
    found = {each["name"]: each["detail"] for each in findings}
    assert len(found) == len(findings)
    assert found["ranks"].startswith("4 found each other over ")
    assert found["ranks"].endswith(": 2 on n0, 2 on n1")
    assert found["links"].startswith("n0–n1 ")
    assert found["folders"] == "runs is not shared"
