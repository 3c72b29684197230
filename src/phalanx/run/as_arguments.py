"""Errors about options of the command line, in the words of arguments of Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.errors import UserError

_OPTION = re.compile(
    r"--([a-z]+(?:-[a-z]+)*)(?![a-z=-])"
    r"(?: (none|auto|on|off|mpi|shared|gloo|zero|local|server|sequential|fp16|bf16|"
    r"int8|powersgd|topk|average|nesterov|library|naive|direct|ring|tree|halving|"
    r"gpipe|1f1b|interleaved|zero-bubble|[\d.]+))?"
)


@contextmanager
def as_arguments() -> Iterator[None]:
    """Let errors within name arguments of Python in place of options of the command line."""
    try:
        yield
    except UserError as error:
        raise UserError(_OPTION.sub(_argument, str(error))) from error


def _argument(option: re.Match[str]) -> str:
    name, value = option[1].replace("-", "_"), option[2]
    if value is None:
        return f"{name}="
    return f"{name}={value}" if value[0].isdigit() else f'{name}="{value}"'
