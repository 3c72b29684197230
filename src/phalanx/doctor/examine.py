"""Runs the checks one after the other, each with a timeout; a failed check is a finding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError

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


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check: its name, function and timeout."""

    name: str
    run: Callable[[], list[Finding]]
    timeout_s: float = 30.0


def examine(checks: Sequence[Check]) -> Iterator[Finding]:
    """Yield the findings of each check as it completes."""
    for check in checks:
        yield from _findings(check)


def _findings(check: Check) -> list[Finding]:
    """Run a check on a daemon thread, which is abandoned after the timeout."""
    found: list[Finding] = []
    thread = threading.Thread(target=lambda: found.extend(_guarded(check)), daemon=True)
    thread.start()
    thread.join(check.timeout_s)
    if thread.is_alive():
        return [problem(check.name, f"no answer within {check.timeout_s:g} s")]
    return found


def _guarded(check: Check) -> list[Finding]:
    try:
        return check.run()
    except UserError as error:
        return [problem(check.name, str(error))]
    except Exception as error:  # noqa: BLE001  # whatever it is, the other checks go on
        return [problem(check.name, f"{type(error).__name__}: {error}")]
