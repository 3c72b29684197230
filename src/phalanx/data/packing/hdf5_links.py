"""Data sets of an HDF5 file that lie in this very file.

Links, external storage and virtual data sets can name any other file of the user's, which would be
packed without a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phalanx.errors import UserError

MAX_LINKS = 32


def find_data_set(path: Path, file: Any, name: str) -> Any:
    """Return a data set of an open file; None when there is none of that name. Soft links within
    the file are followed.

    Raises: UserError when it lies in another file, which is named, or links lead in a circle.
    """
    return _checked(path, file, name, depth=0)


def _checked(path: Path, file: Any, name: str, depth: int) -> Any:
    if depth > MAX_LINKS:
        raise UserError(f"{path}: {name} is made of data sets that are made of each other")
    item = _resolved(path, file, name)
    if item is None or not (hasattr(item, "dtype") and hasattr(item, "shape")):
        return None
    if item.external:
        raise UserError(_refusal(path, name, item.external[0][0]))
    if item.is_virtual:
        for source in item.virtual_sources():
            if source.file_name != ".":
                raise UserError(_refusal(path, name, source.file_name))
            if "%" in source.dset_name or _checked(path, file, source.dset_name, depth + 1) is None:
                raise UserError(
                    f"{path}: {name} is made of {source.dset_name!r}, which is not there"
                )
    return item


def _resolved(path: Path, file: Any, name: str) -> Any:
    """Follow each part of the name by itself, so that no link is followed unseen."""
    import h5py

    rest, at, num_links = [part for part in name.split("/") if part], file, 0
    while rest:
        part = rest.pop(0)
        if part == ".":
            continue
        link = at.get(part, getlink=True) if isinstance(at, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.SoftLink):
            num_links += 1
            if num_links > MAX_LINKS:
                raise UserError(f"{path}: {name} is a link that leads in a circle")
            rest = [step for step in link.path.split("/") if step] + rest
            at = file if link.path.startswith("/") else at
        elif isinstance(link, h5py.HardLink):
            at = at[part]
        else:
            raise UserError(_refusal(path, name, getattr(link, "filename", "something outside")))
    return at


def _refusal(path: Path, name: str, other: object) -> str:
    return (
        f"{path} is refused: {name} lies in another file, {other}\n"
        "name that file as the source, or copy its data into this one"
    )
