"""The code speaks the field's language: one name for one class, docstrings that stand alone."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
OPENERS = {"What", "Of", "Whether", "How", "Which", "Those", "That", "By", "Who"}
PREPOSITIONS = {
    *("After", "Against", "Along", "Among", "Around", "As", "At", "Before", "Beside", "Between"),
    *("During", "For", "From", "In", "Into", "On", "Over", "Per", "Since", "Through", "To"),
    *("Under", "Until", "When", "Where", "With", "Within", "Without"),
}
DIRECTIVE = re.compile(r"#(?:!|\s*(?:noqa|type:|ruff:|fmt:|mypy:|pragma:))")
"""Comments for a tool, which are no sentences."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
IMPORTS = re.compile(r"^\s*from (phalanx[\w.]*) import (\w+(?:, *\w+)*)", re.MULTILINE)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def definitions() -> list[tuple[str, ast.Module | Definition]]:
    """Each module, function and class of the package, with its place."""
    return [
        (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Module | Definition)
    ]


def test_no_class_name_stands_twice() -> None:
    places = defaultdict(list)
    for place, node in definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(place)
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_docstrings_open_with_a_verb_or_a_noun_phrase() -> None:
    wrong = [
        f"{place} {text.splitlines()[0]}"
        for place, node in definitions()
        if (text := ast.get_docstring(node))
        and text.split()[0].strip(",:") in OPENERS | PREPOSITIONS
    ]
    assert not wrong


def attribute_docstrings() -> list[tuple[str, str]]:
    """Each text below an attribute or a value, with its place."""
    return [
        (f"{path.relative_to(ROOT)}:{after.lineno}", after.value.value)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(tree_of(path))
        for body in [getattr(node, "body", None)]
        if isinstance(body, list)
        for before, after in pairwise(body)
        if isinstance(before, ast.Assign | ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    ]


def test_attribute_docstrings_open_with_what_they_name() -> None:
    """A third of them opened with "Of", "For" or another preposition, and had no subject."""
    found = attribute_docstrings()
    assert len(found) > 1000
    assert not [
        f"{place} {text.splitlines()[0]}"
        for place, text in found
        if text.split()[0].strip(",:") in OPENERS | PREPOSITIONS
    ]


def comments_of(source: str) -> list[tuple[int, str]]:
    """Each comment, with its line. Lines of a block are one comment, trailing ones are each one."""
    found = list[tuple[int, str]]()
    last = (-1, 0)
    """Row and column of a block's line so far."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        (row, column), text = token.start, token.string.strip("#: ")
        is_trailing = bool(token.line[:column].strip())
        if not is_trailing and last == (row - 1, column):
            found[-1] = (found[-1][0], f"{found[-1][1]} {text}")
        else:
            found.append((row, text))
        last = (-1, 0) if is_trailing else token.start
    return found


def without_subject(source: str) -> list[str]:
    """Return comments that open with a preposition or a relative word, with their lines."""
    return [
        f"{line} {text}"
        for line, text in comments_of(source)
        if text and text.split()[0].strip(",:").capitalize() in OPENERS | PREPOSITIONS
    ]


def test_comments_open_with_what_they_say() -> None:
    """An eighth of them were parts of a sentence whose subject stood elsewhere: 127 of 980."""
    paths = sorted(SOURCE.rglob("*.py"))
    assert sum(len(comments_of(path.read_text())) for path in paths) > 900
    wrong = {str(path.relative_to(ROOT)): without_subject(path.read_text()) for path in paths}
    assert not {path: texts for path, texts in wrong.items() if texts}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("steps = []  # of the current epoch\n", ["1 of the current epoch"]),
        ("steps = []  # steps of the current epoch\n", []),
        (
            "# By increasing batch,\n# then as planned.\nx = 1\n",
            ["1 By increasing batch, then as planned."],
        ),
        ("# Rows are sorted\n# by increasing batch.\nx = 1\n", []),
        ("x = 1  # rows\n# Which may be gone.\n", ["2 Which may be gone."]),
        ("x = 1  # Where: it is\n", ["1 Where: it is"]),
        ("x = 1  # noqa: E501\ny = '# of a text'\n", []),
    ],
)
def test_a_comment_without_a_subject_is_found(source: str, found: list[str]) -> None:
    assert without_subject(source) == found


def public_names() -> list[tuple[str, str]]:
    """(module, name) of the names of `phalanx`, and of those that users' programs import."""
    texts = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    found = {
        (module, name.strip())
        for path in texts
        for module, names in IMPORTS.findall(path.read_text())
        for name in names.split(",")
    }
    found |= {
        (node.module, alias.name)
        for node in ast.walk(tree_of(SOURCE / "phalanx" / "__init__.py"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("phalanx.")
        for alias in node.names
    }
    return sorted(found)


def definition_of(module: str, name: str) -> ast.Module | Definition | None:
    """The definition of a name, where it is a module, function or class; None for a value."""
    path = SOURCE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Definition) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return definition_of(str(node.module), name)
    inner = SOURCE.joinpath(*module.split("."), f"{name}.py")
    return tree_of(inner) if inner.exists() else None


@pytest.mark.parametrize(("module", "name"), public_names())
def test_public_names_are_documented(module: str, name: str) -> None:
    found = definition_of(module, name)
    if found is None:
        return
    assert ast.get_docstring(found), f"{module}.{name} has no docstring"
    if isinstance(found, ast.ClassDef):
        methods = [
            node
            for node in found.body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        ]
        assert not [node.name for node in methods if not ast.get_docstring(node)]


OF_PLANS = (
    *("plan/", "cli/plan", "cli/trace", "records/", "report/", "run/profiling", "run/watching"),
    *("bench/plan", "bench/profile", "bench/machine", "parallel/program_costs"),
)
"""Begins of the names of files that serve `phalanx plan`, which have the word to themselves."""
PLAN = re.compile(r"(?<![a-zA-Z])plan(?:s|ned|ning)?(?![a-z])|Plan(?:ned)?(?![a-z])|PLAN(?:NED)?")
OTHER_PLANS = re.compile(
    r"(?i)tensor[ _-]plan|parallelize_plan|plan for tensor parallelism"  # PyTorch's word
    r"|file\.py:plan"  # a user's function
    r'|phalanx[ .](?:cli\.)?plan(?::plan)?|app, "plan"'  # the command
    r'|"planned"'  # the status of a run
)


def test_a_plan_is_what_phalanx_plan_makes() -> None:
    """What else was called so has its own word: a setup, a layout, a schedule, requirements."""
    found = {}
    for path in sorted((SOURCE / "phalanx").rglob("*.py")):
        name = path.relative_to(SOURCE / "phalanx").as_posix()
        if name.startswith(OF_PLANS):
            continue
        assert not PLAN.search(name), f"{name}: a file of that name is in plan/"
        text = OTHER_PLANS.sub("", path.read_text())
        if lines := [line.strip() for line in text.splitlines() if PLAN.search(line)]:
            found[name] = lines
    # PyTorch's tensor plan is what this file is about; the other is a key of files that exist.
    assert found.pop("parallel/tensor.py")
    assert found.pop("checkpoints/rank_state.py") == ['BUCKETS = "plan"']
    assert not found
