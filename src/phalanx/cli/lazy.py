"""Commands whose modules are imported only when called, while `--help` works without."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cyclopts import App


def add_command(app: App, name: str, where: str, **options: Any) -> None:
    """Register the function `module:function` as a command.

    Its help is read from the source, since importing the module may take seconds.
    """
    app.command(where, name=name, help=read_docstring(where), **options)


def read_docstring(where: str) -> str | None:
    """Return the docstring of `module:function`, without importing the module."""
    module, _, function = where.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.get_docstring(node)
    return None
