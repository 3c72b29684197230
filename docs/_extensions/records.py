"""The format of records as a page, made of the source of its schema."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

SOURCE = Path(__file__).parents[2] / "src" / "phalanx" / "records"
PLACES = {
    "<!-- run.json -->": "schema.py",
    "<!-- rank-<r>.jsonl -->": "events.py",
    "<!-- plan.json -->": "plan.py",
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _fill_in)
    return {"version": "1", "parallel_read_safe": True}


def _fill_in(_: Sphinx, __: str, source: list[str]) -> None:
    for place, file in PLACES.items():
        if place in source[0]:
            source[0] = source[0].replace(place, describe_structs(SOURCE / file))


def describe_structs(path: Path) -> str:
    """Return a section per struct of a file: its text, and a table of its fields."""
    text = path.read_text()
    lines, sections = text.splitlines(), list[str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name != "Event":
            tag = next((ast.literal_eval(k.value) for k in node.keywords if k.arg == "tag"), None)
            title = f"`{tag}`" if tag else node.name
            sections += [f"### {title}", "", (ast.get_docstring(node) or ""), ""]
            sections += ["| field | type and default | meaning |", "|---|---|---|"]
            sections += _rows(node, lines)
            sections.append("")
    return "\n".join(sections)


def _rows(struct: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    """Yield a row per field. A comment above several fields is that of each."""
    above = ""
    last_line = struct.lineno
    for node in struct.body:
        if not isinstance(node, ast.AnnAssign):
            continue
        between = [line.strip() for line in lines[last_line : node.lineno - 1]]
        comments = [line.removeprefix("#").strip() for line in between if line.startswith("#")]
        _, _, beside = lines[(node.end_lineno or 0) - 1].partition("  # ")
        above = " ".join(comments) or ("" if beside else above)
        default = "" if node.value is None else f" = {ast.unparse(node.value)}"
        kind, meaning = ast.unparse(node.annotation), " ".join(filter(None, (above, beside)))
        cells = (f"`{ast.unparse(node.target)}`", f"`{kind}{default}`", meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        last_line = node.end_lineno or 0
