"""Output of findings: a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.doctor.examine import Finding, Status

# Colour repeats what the word says.
_STYLES: dict[Status, str] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def show_table(findings: Sequence[Finding], console: Console) -> None:
    """Print all findings; then the warnings and problems again, with their fixes."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in ("name", "status"):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        status = Text(finding.status, style=_STYLES[finding.status])
        table.add_row(Text(finding.name), status, Text(finding.detail))
    console.print(table)
    for finding in findings:
        if finding.status != "ok":
            console.print()
            console.print(Text(f"{finding.name}: {finding.detail}"), soft_wrap=True)
            if finding.mend is not None:
                console.print(Text(f"  fix: {finding.mend}"), soft_wrap=True)
    console.print()
    console.print(verdict(findings), highlight=False)


def verdict(findings: Sequence[Finding]) -> str:
    """Return `2 problems, 1 warning`, or `no problems found`."""
    counts = {word: sum(f.status == word for f in findings) for word in ("problem", "warning")}
    said = [f"{n} {word}{'s' if n > 1 else ''}" for word, n in counts.items() if n]
    return ", ".join(said) or "no problems found"


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings], indent=2)
