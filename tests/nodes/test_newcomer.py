"""The first hour of somebody who has three machines with ssh, as README.md and the docs tell it.

Each node gets an environment of its own, at the same path, from wheels; Phalanx is nowhere else.
PHALANX_WHEELS=FOLDER takes wheels from there, that of Phalanx too; else pip makes and fetches them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.jobs.installation import Vendor, find_mpi
from tests.conftest import ONE_THREAD, PATIENCE
from tests.nodes.cluster import Cluster, virtual_nodes
from tests.nodes.conftest import reason_to_skip
from tests.nodes.mpi_nodes import IDLE_RANKS, ROOT

pytestmark = [pytest.mark.nodes, pytest.mark.long, pytest.mark.timeout(1800)]

SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
EXTRAS: dict[Vendor, str] = {"openmpi": "openmpi", "mpich": "mpich", "impi": "impi"}
VENV = "/mnt/scratch/venv"
HOSTS = "n0:1,n1:1,n2:1"
SMALL = "--model mlp --dataset digits --train-samples 512 --validation-samples 64 --epochs 2"
WITHIN_S = 10.0


def requirement() -> str:
    return f"phalanx[{EXTRAS[find_mpi(os.environ).vendor]},study]"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the wheels of Phalanx and of all that it needs."""
    made = os.environ.get("PHALANX_WHEELS")
    if made:
        return Path(made).absolute()
    source, folder = (tmp_path_factory.mktemp(name) for name in ("source", "wheels"))
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
    ]
    wanted = requirement().replace("phalanx", str(source), 1)
    done = subprocess.run([*pip, "--wheel-dir", folder, wanted], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no wheels can be had: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return folder


@pytest.fixture(scope="module")
def newcomer(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with nothing but Python, ssh and wheels, on which Phalanx has been installed."""
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    # Without bytecode, most of which nobody would import, an environment takes seconds.
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_COMPILE": "0"}
    state = tmp_path_factory.mktemp("nodes") / "state"
    environment = {**pip, **ONE_THREAD, **IDLE_RANKS}
    with virtual_nodes(3, state, keep=[wheels], environment=environment) as nodes:
        python = getattr(sys, "_base_executable", sys.executable)
        for node in nodes.nodes:
            install = f"{VENV}/bin/pip install --quiet '{requirement()}'"
            code, said = shell(nodes, node, f"{python} -m venv {VENV} && {install}", **environment)
            assert code == 0, said
        yield nodes


def shell(nodes: Cluster, node: str, line: str, **variables: str) -> tuple[int, str]:
    """Run a line in the user's shell on a node, without variables of ours; exit code, output."""
    path = f"PATH={VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    given = [f"{name}={value}" for name, value in {**ONE_THREAD, **IDLE_RANKS, **variables}.items()]
    words = ["env", "-i", path, "HOME=/root", "LANG=C.UTF-8", *given, "sh", "-c", line]
    done = nodes.run(node, words, timeout_s=300 * PATIENCE)
    return done.returncode, done.stdout


def refused(nodes: Cluster, line: str) -> list[str]:
    """Run a line on n0 that must be refused in time; return the mends that are named."""
    began = time.monotonic()
    code, said = shell(nodes, "n0", line)
    assert code == 2, said
    assert time.monotonic() - began < WITHIN_S * PATIENCE, said
    assert "Traceback" not in said
    return re.findall(r"; fix: (.*)", said)


def test_doctor_of_all_nodes(newcomer: Cluster) -> None:
    code, said = shell(newcomer, "n0", f"phalanx doctor --hosts {HOSTS} --json")
    assert code == 0, said
    found = {each["name"]: each for each in json.loads(said)}
    assert {found[name]["status"] for name in ("MPI", "ranks", "kernels", "n0", "n1", "n2")} == {
        "ok"
    }
    assert found["folders"]["detail"] == "runs is not shared"


def test_one_command_trains_and_one_reports(newcomer: Cluster) -> None:
    train = f"phalanx train --strategy mpi --hosts {HOSTS} {SMALL} --run-dir first"
    code, said = shell(newcomer, "n0", train)
    assert code == 0, said
    assert said.startswith("3 ranks on n0, n1, n2 (--hosts)\n")
    assert "`phalanx report first` draws them" in said
    code, said = shell(newcomer, "n0", "phalanx report first && ls first")
    assert code == 0, said
    for name in ("rank-0.jsonl", "rank-1.jsonl", "rank-2.jsonl", "report.html"):
        assert name in said
    code, said = shell(newcomer, "n1", "ls /mnt/scratch")
    assert said.split() == ["venv"]


def test_a_program_is_copied_as_it_is_told(newcomer: Cluster) -> None:
    program = (ROOT / "examples" / "11_own_program.py").read_text()
    newcomer.shared.joinpath("program.py").write_text(program.replace("epochs=20", "epochs=2"))
    shell(newcomer, "n0", f"cp {newcomer.shared}/program.py /mnt/scratch/")
    launch = f"phalanx launch --hosts {HOSTS} --log-dir own program.py"
    mends = refused(newcomer, launch)
    assert len(mends) == 2, mends
    code, said = shell(newcomer, "n0", " && ".join(mends))
    assert code == 0, said
    code, said = shell(newcomer, "n0", launch)
    assert code == 0, said
    assert "of digits never seen are read right, by 3 ranks" in said
    code, said = shell(newcomer, "n0", "phalanx report own")
    assert code == 0, said


def test_a_node_without_phalanx_is_mended_as_it_is_told(newcomer: Cluster) -> None:
    shell(newcomer, "n2", f"{VENV}/bin/pip uninstall --quiet --yes phalanx")
    launch = f"phalanx launch --hosts {HOSTS} hostname"
    (mend,) = refused(newcomer, launch)
    assert mend.startswith("ssh n2 "), mend
    code, said = shell(newcomer, "n0", mend)
    assert code == 0, said
    code, said = shell(newcomer, "n0", launch)
    assert code == 0, said


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("launch --hosts n0,n1,nowhere hostname", "nowhere: ssh: Could not resolve hostname"),
        ("launch -n 4 --hosts n0:1,n1:2 hostname", "--hosts has 3 slots: n0:1, n1:2"),
        ("launch --hosts n0,n1 absent.py", "absent.py"),
        (f"train --hosts {HOSTS}", "add --strategy mpi"),
    ],
)
def test_what_goes_wrong_is_named_in_time(newcomer: Cluster, line: str, reason: str) -> None:
    before = shell(newcomer, "n0", "find /mnt/scratch -path '*/venv' -prune -o -print")
    began = time.monotonic()
    code, said = shell(newcomer, "n0", f"phalanx {line}")
    assert code == 2, said
    assert time.monotonic() - began < WITHIN_S * PATIENCE
    assert reason in said
    assert shell(newcomer, "n0", "find /mnt/scratch -path '*/venv' -prune -o -print") == before


def test_a_study_over_one_two_and_three_nodes(newcomer: Cluster) -> None:
    words = "--models mlp --strategies mpi --seeds 0 --epochs 1 --threads 1 --train-samples 512"
    study = f"phalanx study scaling --hosts {HOSTS} --nodes 1 2 3 {words} --dataset digits"
    code, said = shell(newcomer, "n0", study)
    assert code == 0, said
    assert "up to 3 ranks on n0, n1, n2 (--hosts)" in said
    code, said = shell(newcomer, "n0", f"ls {said.split()[-1]}")
    assert code == 0, said
