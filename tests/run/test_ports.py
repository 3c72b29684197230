"""Programs that were ported to `phalanx.start`: small diffs, and the numbers of one process."""

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Ranks, long
from tests.run.programs.ports import CASES, FOLDER, trained

PAGE = Path(__file__).parents[2] / "docs" / "coming_from.md"
MOST_LINES = {**dict.fromkeys(CASES, 8), "on_policy": 15}
ON_POLICY = FOLDER.parent / "16_on_policy.py"


def diff_of(name: str) -> list[str]:
    """Return the diff of a program to its port, without a heading."""
    port = ON_POLICY if name == "on_policy" else FOLDER / f"{name}.py"
    files = (FOLDER / f"{name}_before.py", port)
    before, after = (file.read_text().split('"""', 2)[2].splitlines() for file in files)
    return list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]


def changed_lines(diff: list[str]) -> int:
    """Count lines removed or added; those that replace each other count once, empty ones not."""
    count = 0
    for piece in "\n".join(diff).split("@@\n")[1:]:
        signs = re.findall(r"^([-+])[^\n]", piece, re.M)
        count += max(signs.count("-"), signs.count("+"))
    return count


def test_changed_lines_are_counted() -> None:
    assert changed_lines(["@@ a @@", "-x", "-y", "+z", "@@ b @@", "+v", "+", "@@ c @@", "-w"]) == 4


@pytest.mark.parametrize("name", MOST_LINES)
def test_a_port_changes_few_lines_and_the_page_shows_them(name: str) -> None:
    diff = diff_of(name)
    assert changed_lines(diff) <= MOST_LINES[name]
    shown = [line for line in diff if not line.startswith("@@") and len(line) > 1]
    assert "```diff\n" + "\n".join(shown) + "\n```" in PAGE.read_text()


def test_every_port_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {
        "digits", *CASES, *(f"{name}_before" for name in MOST_LINES)
    }  # fmt: skip


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, long(3), long(4)])
def test_ports_agree_with_one_process(
    num_ranks: int, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    ranks.mpi(num_ranks, programs("ports.py"), str(tmp_path))
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(num_ranks)]
    for name in CASES:
        truth, printed = trained(name)
        for rank, result in enumerate(results):
            found, lines = result[name]
            for key, value in truth.items():
                assert (found[key] - value).abs().max() < 1e-10, (name, rank, key)
            assert lines == (printed if rank == 0 else "")


@pytest.mark.long
@pytest.mark.mpi
def test_one_file_is_started_in_four_ways(new_ranks: Ranks, tmp_path: Path) -> None:
    program, words = FOLDER / "mnist.py", ("--samples", "300", "--epochs", "2")
    alone = _output([str(program), *words])
    assert len(re.findall(r"^epoch \d: loss ", alone, re.M)) == 2
    assert new_ranks.mpi(2, program, *words) == alone
    assert new_ranks.torchrun(2, program, *words) == alone
    launch = ["-m", "phalanx", "launch", "-n", "2", "--log-dir", str(tmp_path / "logs")]
    assert _output([*launch, str(program), *words]) == alone


def _output(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
