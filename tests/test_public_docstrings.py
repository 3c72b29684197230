"""Docstrings of public names are Google's form, whole and true: every parameter is described, every
described one exists, and type hints resolve."""

import ast
import builtins
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from types import FunctionType
from typing import Any

import pytest

import phalanx

HOOKS = import_module("phalanx.gradients.compression.ddp")
HOROVOD = import_module("phalanx.horovod")
VALUES = {
    "phalanx.data.packed.index": ["Field"],
    "phalanx.data.packed.part_reader": ["DamagedError"],
    "phalanx.parallel.step": ["Batch", "StepOptions", "StepResult"],
    "phalanx.parallel.strategy": ["NonFiniteGradientsError"],
    "phalanx.records.totals": ["Validation"],
    "phalanx.run.batch": ["Epoch", "Position"],
    "phalanx.comm.errors": import_module("phalanx.comm.errors").__all__,
}
"""Values and errors that public names hand out, by module."""
MADE_BY_PHALANX = {"ProgramRun", "MicroBatch", "Epoch", "Handle"}
"""Classes whose constructors programs do not call, beside those of errors."""
MEMBERS = (property, staticmethod, classmethod, FunctionType)
ENTRY = re.compile(r"^    ([*\w]+(?:, [*\w]+)*): \S", re.MULTILINE)
OLD_FORM = re.compile(r"\b(?:Args|Raises|Returns): \S")


def public_objects() -> dict[str, Any]:
    named = {f"phalanx.{name}": getattr(phalanx, name) for name in phalanx.__all__}
    named |= {
        f"phalanx.horovod.{name}": value
        for name, value in vars(HOROVOD).items()
        if name[0] != "_" and getattr(value, "__module__", "").startswith("phalanx.")
    }
    named |= {f"hooks.{name}": getattr(HOOKS, name) for name in ("Compressed", "reduce_bucket")}
    for module, names in VALUES.items():
        named |= {f"{module}.{name}": getattr(import_module(module), name) for name in names}
    return named


def is_ours(kind: type) -> bool:
    return kind.__module__.startswith("phalanx.")


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield methods and properties that Phalanx defines, by name."""
    found = dict[str, Any]()
    for base in kind.__mro__:
        if is_ours(base):
            found = {**vars(base), **found}
    for name, value in found.items():
        if name[0] != "_" and isinstance(value, MEMBERS):
            yield name, value


def documented() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Yield the name, the docstring and the function of everything public that has parameters."""
    for name, value in public_objects().items():
        if not inspect.isclass(value):
            yield name, inspect.getdoc(value) or "", inspect.unwrap(value)
            continue
        is_called = value.__name__ not in MADE_BY_PHALANX and not issubclass(value, Exception)
        if is_called and "__init__" in vars(value) and not has_fields(value):
            yield name, inspect.getdoc(value) or "", vars(value)["__init__"]
        for method, member in members_of(value):
            if isinstance(member, property):
                continue
            function = getattr(member, "__func__", member)
            yield f"{name}.{method}", inspect.getdoc(function) or "", inspect.unwrap(function)


def has_fields(kind: type) -> bool:
    """Return whether a class is one of values: a dataclass, a named tuple or a struct."""
    return any(
        hasattr(kind, name) for name in ("__dataclass_fields__", "_fields", "__struct_fields__")
    )


def undescribed_fields(kind: type) -> list[str]:
    """Return the fields below which nothing stands."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    return [
        ast.unparse(before.target)
        for before, after in pairwise([*body.body, ast.Pass()])
        if isinstance(before, ast.AnnAssign)
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]


FUNCTIONS = {name: (text, function) for name, text, function in documented()}


def section(text: str, title: str) -> str:
    """Return the lines of a section of a docstring, indented as they are."""
    found = re.search(rf"^{title}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return found.group(1) if found else ""


def described(text: str, title: str) -> list[str]:
    return [
        name.lstrip("*")
        for names in ENTRY.findall(section(text, title))
        for name in names.split(", ")
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_described_and_every_described_one_exists(name: str) -> None:
    text, function = FUNCTIONS[name]
    assert text, "has no docstring"
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    parameters = [each for each in parameters if each != "cls"]
    assert described(text, "Args") == parameters


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_are_of_googles_form(name: str) -> None:
    text, function = FUNCTIONS[name]
    assert not OLD_FORM.findall(text)
    known = {*vars(builtins), *(value.__name__ for value in public_objects().values())}
    assert set(described(text, "Raises")) <= known
    returns = section(text, "Returns")
    assert not returns or typing.get_type_hints(function)["return"] is not type(None)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_type_hints_resolve(name: str) -> None:
    text, function = FUNCTIONS[name]
    hints = typing.get_type_hints(function)
    assert {*described(text, "Args")} <= {*hints}


@pytest.mark.parametrize("name", [*public_objects()])
def test_every_member_has_a_docstring(name: str) -> None:
    value = public_objects()[name]
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        members = members_of(value)
        assert not [each for each, member in members if not inspect.getdoc(member)]
        assert not (has_fields(value) and undescribed_fields(value))
