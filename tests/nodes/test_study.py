"""A scaling study of a program over nodes: resumed, with a lost node, in an allocation of Slurm."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.records.files import read_run
from tests.conftest import PATIENCE
from tests.nodes.conftest import MakeNodes
from tests.nodes.mpi_nodes import INSTALLED, Nodes
from tests.nodes.slurm import Slurm
from tests.report.made_view import read, rows_of, table_of

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]

STUDY = ["-m", "phalanx", "study", "scaling", "--nodes", "1", "2", "--ranks", "2"]
STUDY += ["--strategies", "mpi"]
HOSTS = ["--hosts", "n0:2,n1:1"]
ONE_NODE, TWO_NODES = ("studied-mpi-2x1-1n-s0", "studied-mpi-2x1-2n-s0")


def study_words(folder: Path, program: Path, words: str, *options: str) -> list[str]:
    named = ["--study-dir", str(folder), "--program", f"{program} {words}"]
    return [sys.executable, *STUDY, *options, *named]


def check_page(folder: Path) -> None:
    """The same ranks on one node and on two are two configurations, and what went between the nodes
    was counted: of 66,561 gradients of 4 bytes each rank sends its own to the other node."""
    _, (view,) = read(folder)
    assert sorted(row["nodes"] for row in view.frame("cells")) == [1, 2]
    table = table_of(view, "Links")
    assert table is not None
    rows = rows_of(table)
    assert [row["nodes"] for row in rows] == ["1", "2"]
    assert rows[1]["sent between nodes"] == "264 KB"
    assert [row["between nodes"] == "0.0 % (one run)" for row in rows] == [True, False]
    assert "Links" in (folder / "report.html").read_text()


def test_a_study_over_nodes_goes_on_where_it_was_interrupted(
    make_nodes: MakeNodes, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    with make_nodes(2) as nodes:
        folder = nodes.shared / "study"
        words = study_words(folder, programs("studied.py"), "3 0.05", "--seeds", "0", *HOSTS)
        script = (
            '"$@" & study=$!; '
            f"until [ -f {folder / TWO_NODES / 'run.json'} ]; do sleep 0.2; done; "
            "kill -TERM $study; wait $study"
        )
        log = tmp_path / "log"
        with nodes.start("n0", ["sh", "-c", script, "sh", *words], log, environment=INSTALLED) as s:
            s.wait(120 * PATIENCE)
        assert "repeat the command to resume" in log.read_text()
        first = read_run(folder / ONE_NODE)
        done = nodes.run("n0", words, environment=INSTALLED, timeout_s=120 * PATIENCE)
        assert done.returncode == 0, done.stdout
        assert "1 of 2 runs are already done" in done.stdout
        assert read_run(folder / ONE_NODE) == first
        check_page(folder)


def test_a_study_names_the_node_that_it_has_lost(
    make_nodes: MakeNodes, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    with make_nodes(2) as nodes:
        folder, log = nodes.shared / "study", tmp_path / "log"
        words = study_words(folder, programs("studied.py"), "100 0.05", "--seeds", "0", *HOSTS)
        with nodes.start("n0", words, log, environment=INSTALLED) as study:
            lose_in(nodes, folder / TWO_NODES, "n1", 150 * PATIENCE)
            study.wait(60 * PATIENCE)
        said = log.read_text()
        assert study.returncode == 1, said
        assert "failed: rank 1 (n1) ended without a word: its node is gone" in said
        outcome = json.loads((folder / TWO_NODES / "run.json").read_text())["outcome"]
        assert outcome["status"] == "failed"
        assert "n1 does not answer" in outcome["error"]
        assert "n1 does not answer" in (folder / "report.html").read_text()
        assert read_run(folder / ONE_NODE).outcome.status == "completed"


def lose_in(nodes: Nodes, run: Path, node: str, seconds: float) -> None:
    """End a node once a run has made an epoch."""
    end = time.monotonic() + seconds
    records = run / "rank-0.jsonl"
    while not (records.exists() and '"epoch"' in records.read_text()):
        assert time.monotonic() < end, "the run has not begun"
        time.sleep(0.1)
    nodes.power_off(node)


@pytest.mark.long
def test_a_study_in_an_allocation_takes_its_nodes(
    slurm: Slurm, programs: Callable[[str], Path]
) -> None:
    folder = slurm.shared / "study"
    words = study_words(folder, programs("studied.py"), "3 0.0", "--seeds", "0")
    command = ["salloc", "--nodes=2", "--ntasks-per-node=2", *words]
    done = slurm.run("n0", command, environment=INSTALLED, timeout_s=200 * PATIENCE)
    assert done.returncode == 0, done.stdout
    assert "Slurm" in done.stdout.splitlines()[0] or "Slurm" in done.stdout
    check_page(folder)
