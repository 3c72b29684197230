"""Bars that keep the house small enough for others to carry on."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "phalanx"
MODULES = {
    ".".join(("phalanx", *path.relative_to(SOURCE).with_suffix("").parts)): path
    for path in sorted(SOURCE.rglob("*.py"))
}
MOST_LINES = 87_135
"""Of Python, 560 of them the parameters of public names in docstrings. It falls, and rises only by
what is new. 55,000 is where it was to go; see docs/log.md for what was found on the way."""
LONGEST_FILE = 600
"""An idea is whole in a file of this length; what is longer holds two."""


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports as it is loaded, those for types alone left out."""
    names: set[str] = set()
    for node in loaded(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & MODULES.keys()


def loaded(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those within its conditions."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from loaded([*node.body, *node.orelse])


def test_the_house_does_not_grow() -> None:
    assert sum(map(lines_of, MODULES.values())) <= MOST_LINES


def test_no_file_holds_two_ideas() -> None:
    assert {name for name, path in MODULES.items() if lines_of(path) > LONGEST_FILE} == set()


def test_no_files_import_each_other() -> None:
    """Rooms are compared by tests/test_imports.py, which sees no circle within one: there were
    five."""
    left = {name: imports_of(path) for name, path in MODULES.items()}
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"among these are circles: {', '.join(left)}"


def code_about(word: str) -> int:
    """Count the lines of code that name a thing, and those of functions and classes called so."""
    count = 0
    for path in MODULES.values():
        text = path.read_text()
        tree, found, prose = ast.parse(text), set[int](), set[int]()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and word in node.name.lower():
                found |= set(range(node.lineno, (node.end_lineno or 0) + 1))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                prose |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        lines = enumerate(text.splitlines(), start=1)
        found |= {n for n, line in lines if re.search(word, line.partition("#")[0], re.IGNORECASE)}
        count += len(found - prose)
    return count


@pytest.mark.parametrize("name", ["mpich", "impi", "slurm", "pbs", "lsf"])
def test_another_mpi_or_batch_system_is_a_few_lines(name: str) -> None:
    assert 1 < code_about(name) <= 80


def test_another_strategy_is_a_file_and_its_options() -> None:
    """Local SGD and DiLoCo, the largest that rests on nothing but the interface of strategies; the
    example of docs/strategies.md is shorter (tests/run/test_own_strategy.py)."""
    room = "phalanx.parallel"
    options = next(
        node
        for node in ast.parse(MODULES[f"{room}.options"].read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "LocalOptions"
    )
    own = (options.end_lineno or 0) - options.lineno + 1
    assert lines_of(MODULES[f"{room}.local"]) + own <= 250
