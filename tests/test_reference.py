"""The reference of docs/ is whole: every option of every command, every environment variable."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "phalanx"
FAMILIES = (
    *("CCL", "DS", "FI", "GLIBC", "GLOO", "HYDRA", "I_MPI", "LOCAL", "LSB", "MASTER", "MKL"),
    *("MPI4PY", "MPICH", "MPIR", "MPI_LOCAL[A-Z]", "OMP", "OMPI", "OPAL", "OPENBLAS", "PBS"),
    *("PHALANX", "PMI", "PMIX", "PRTE", "PYTHON[A-Z]", "SLURM", "TORCH", "TORCHELASTIC", "UCX"),
    "XDG",
)
VARIABLE = re.compile(
    rf"(?:{'|'.join(FAMILIES)})_?[A-Za-z0-9_]*[A-Za-z0-9]"
    r"|RANK|WORLD_SIZE|PATH|HOME|SHELL|USER|TMPDIR|COLUMNS"
)
FIRST_LETTERS = {
    *("HYDI_", "MPI_LOCAL", "PALS_", "SLURM_LAUNCH", "SLURM_MPI", "SLURM_PMI", "SLURM_SRUN"),
    *("SLURM_STEP", "SLURM_TASK", "PBS_JOB", "LSB_JOB", "MPICH"),
}
"""Beginnings of variables' names, and a library's."""


def named_variables() -> set[str]:
    """Return the names of environment variables that the package's code has as texts."""
    found = {
        node.value
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if VARIABLE.fullmatch(node.value)
    }
    for path in SOURCE.rglob("*.c"):
        found |= {*re.findall(r"getenv\(\"(\w+)\"\)", path.read_text())}
    return found - FIRST_LETTERS


def test_every_environment_variable_is_named() -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    found = named_variables()
    assert len(found) > 100
    assert not {name for name in found if f"`{name}`" not in page}
    ours = {*re.findall(r"`(PHALANX_\w+)`", page)}
    assert ours - {"PHALANX_REQUIRE_KERNELS"} == {name for name in found if name[:8] == "PHALANX_"}


@pytest.fixture(scope="module")
def commands() -> str:
    """The page of commands, as the site fills it in."""
    program = "from commands import describe_commands; print(describe_commands())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "docs" / "_extensions",
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", ["train", "launch", "data pack", "study scaling"])
def test_every_option_of_a_command_is_described(command: str, commands: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "phalanx", *command.split(), "--help"],
        capture_output=True,
        text=True,
        timeout=100,
        env={"COLUMNS": "200", "PATH": ""},
    )
    options = {*re.findall(r"^│ (--[\w-]+)", done.stdout, re.MULTILINE)}
    _, _, section = commands.partition(f"# phalanx {command}\n")
    described = {
        *re.findall(r"^`(--[\w-]+)[^`]*`\n: \S", section.partition("\n# ")[0], re.MULTILINE)
    }
    assert options and options <= described


@pytest.mark.parametrize(("name", "least"), [("schema.py", 70), ("events.py", 70), ("plan.py", 40)])
def test_every_field_of_the_records_has_a_meaning(name: str, least: int) -> None:
    """95 of 207 rows of the page had none: their fields stood without a comment."""
    place = ROOT / "docs" / "_extensions" / "records.py"
    spec = importlib.util.spec_from_file_location("records_page", place)
    assert spec is not None and spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    rows = re.findall(r"^\| `.*", page.describe_structs(SOURCE / "records" / name), re.M)
    assert len(rows) > least and not [row for row in rows if row.endswith("|  |")]
