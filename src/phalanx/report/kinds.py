"""The page of each kind of study, found by its records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from phalanx.report.build import Content
from phalanx.report.collectives import holds_benches
from phalanx.report.folder import study_of
from phalanx.report.loading import holds_io
from phalanx.report.page_file import has_page, read_page
from phalanx.report.pages.collectives import COLLECTIVES
from phalanx.report.pages.compression import COMPRESSION
from phalanx.report.pages.io import IO, IO_STUDY
from phalanx.report.pages.large_batch import LARGE_BATCH
from phalanx.report.pages.parallelism import PARALLELISM
from phalanx.report.pages.scaling import SCALING
from phalanx.report.pages.survival import SURVIVAL
from phalanx.report.values import Page

PAGES: Mapping[str, Page] = {
    "scaling": SCALING,
    "compression": COMPRESSION,
    "large-batch": LARGE_BATCH,
    "parallelism": PARALLELISM,
    "io": IO_STUDY,
    "survival": SURVIVAL,
}
"""Pages by the kind of a study; another kind is runs to be compared."""


def page_of(folder: Path) -> Page:
    """Return the page of the records in a folder.

    Raises: UserError when study.json cannot be read.
    """
    if has_page(folder):
        return read_page(folder)
    study = study_of(folder)
    if study is not None:
        return PAGES.get(study.kind, SCALING)
    if holds_io(folder):
        return IO
    return COLLECTIVES if holds_benches(folder) else SCALING


def content_of(folder: Path) -> Content:
    """Return the content of the page of a study, a run or measured collectives.

    Raises: UserError when the records cannot be read.
    """
    page = page_of(folder)
    return Content(page, page.read(folder))
