"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the output."""

    name: str
    status: Status
    detail: str
    mend: str | None = None
    """The command or action that fixes it; None when there is nothing to fix."""


def ok(name: str, detail: str) -> Finding:
    return Finding(name, "ok", detail)


def warning(name: str, detail: str, mend: str | None = None) -> Finding:
    return Finding(name, "warning", detail, mend)


def problem(name: str, detail: str, mend: str | None = None) -> Finding:
    return Finding(name, "problem", detail, mend)
