"""Docstrings of Phalanx on the site: examples are Python, types are those of the source, linked."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext import intersphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring

import phalanx

FULL_NAMES = {
    "NDArray": "numpy.ndarray",
    "Tensor": "torch.Tensor",
    "nn.Module": "torch.nn.Module",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "nn.Parameter": "torch.nn.parameter.Parameter",
    "Optimizer": "torch.optim.Optimizer",
    "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
    "LRScheduler": "torch.optim.lr_scheduler.LRScheduler",
    "AbstractContextManager": "contextlib.AbstractContextManager",
    "Counter": "collections.Counter",
    "Path": "pathlib.Path",
    "Any": "typing.Any",
    "Literal": "typing.Literal",
    **{
        name: f"collections.abc.{name}"
        for name in ("Callable", "Iterable", "Iterator", "Mapping", "Sequence")
    },
}
"""Names of types in hints, by which inventories of other projects know them."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    # Else what stands before a colon in an attribute's docstring is taken for its type.
    GoogleDocstring._consume_inline_attribute = lambda own: ("", own._consume_to_end())
    app.connect("autodoc-process-docstring", _prepare_docstring, priority=100)  # before napoleon
    app.connect("missing-reference", _link_type)
    return {"version": "1", "parallel_read_safe": True}


def _prepare_docstring(
    app: Sphinx, kind: str, name: str, value: Any, _: object, lines: list[str]
) -> None:
    """Turn `Example::` into a block of Python, and take types as they are written."""
    marked = []
    for line in lines:
        marked += ["Example:", "", ".. code-block:: python"] if line == "Example::" else [line]
    lines[:] = marked
    function = value.__init__ if inspect.isclass(value) else value
    hints = getattr(inspect.unwrap(function), "__annotations__", {}) if callable(function) else {}
    written = {key: hint for key, hint in hints.items() if isinstance(hint, str)}
    if kind in ("class", "exception"):
        written.pop("return", None)
    app.env.current_document.autodoc_annotations.setdefault(name, {}).update(written)


def _link_type(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Link a type to its public name, or to the documentation of the project that has it."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    if public := _public_name(target):
        domain = env.get_domain("py")
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)
    full = FULL_NAMES.get(target) or target.replace("np.", "numpy.")
    if full == target:
        return None
    node["reftarget"] = full
    return intersphinx.missing_reference(app, env, node, content)


def _public_name(target: str) -> str | None:
    """Return the public name of a class that a hint names as its module does, or None."""
    module, _, name = target.rpartition(".")
    if name not in phalanx.__all__ or module == "phalanx":
        return None
    if module and getattr(import_module(module), name, None) is not getattr(phalanx, name):
        return None
    return f"phalanx.{name}"
