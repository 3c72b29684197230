"""The commands of `phalanx` and their options as a page, made of the options themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

PLACE = "<!-- commands of phalanx -->"
OPTION = re.compile(r"^\* (`[^`]+`): (.*)$")
PAGE = re.compile(r"\(docs/(\w+)\.md\)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _fill_in)
    return {"version": "1", "parallel_read_safe": True}


def _fill_in(_: Sphinx, __: str, source: list[str]) -> None:
    if PLACE in source[0]:
        source[0] = source[0].replace(PLACE, describe_commands())


def describe_commands() -> str:
    """Return a section per command: its help, its usage, and a list of its options."""
    from phalanx.cli.app import app  # only where the page is read

    text = app.generate_docs(output_format="markdown", heading_level=1)
    text = text[text.index("## phalanx ") :].partition("## phalanx --install-completion")[0]
    lines = [line for line in _lines(text.split("\n")) if line != "For example:"]
    return PAGE.sub(r"([](\1.md))", "\n".join(lines))


def _lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines of cyclopts' page, with examples as blocks and options as definitions."""
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if found := OPTION.match(line):
            text = found.group(2)
            while place < len(lines) and lines[place].startswith("    "):
                text += f" {lines[place].strip()}"
                place += 1
            yield from ("", found.group(1), f": {text}")
        elif line.startswith("    "):
            block = [line.strip()]
            while place < len(lines) and (not lines[place] or lines[place].startswith("    ")):
                block += [lines[place].strip()] if lines[place] else []
                place += 1
            yield from ("```console", *block, "```", "")
        else:
            yield line
