"""Inventories for intersphinx from files of this repository: the build fetches nothing.

`docs/_inventories/NAME.txt` holds the address of a project's documentation, then a line per object
that our pages name: its kind, its name, and where it is below that address; `$` stands for the
name. A full inventory in `docs/_inventories/NAME.inv` (`objects.inv` of that site) takes its place.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

HEADER = """# Sphinx inventory version 2
# Project: {project}
# Version: 0
# The remainder of this file is compressed using zlib.
"""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("config-inited", _add_inventories, priority=100)  # before intersphinx reads them
    return {"version": "1", "parallel_read_safe": True}


def _add_inventories(app: Sphinx, config: Config) -> None:
    """Write an inventory for each list, and name them all to intersphinx."""
    folder = Path(app.doctreedir) / "inventories"
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((Path(app.srcdir) / "_inventories").glob("*.txt")):
        address, *lines = path.read_text().splitlines()
        full, written = path.with_suffix(".inv"), folder / f"{path.stem}.inv"
        content = HEADER.format(project=path.stem).encode()
        content += zlib.compress("".join(map(_entry, filter(None, lines))).encode())
        written.write_bytes(content)
        inventory = full if full.exists() else written
        config.intersphinx_mapping[path.stem] = (address, (str(inventory),))


def _entry(line: str) -> str:
    kind, name, place = line.split()
    return f"{name} py:{kind} 1 {place.replace('$', name)} -\n"
