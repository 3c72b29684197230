"""Published values beside a study: shown with their source, and nothing made of them."""

from pathlib import Path

from phalanx.report.folder import read_folder
from phalanx.report.published.beside import MNIST_SAMPLES, beside_published, published
from phalanx.report.scaling.page import scaling_content


def test_every_published_value_has_a_source_and_says_what_differs() -> None:
    assert published()
    for entry in published():
        assert entry.source.startswith("https://")
        assert entry.differs and entry.study and entry.split


def test_a_study_of_images_stands_beside_them(full: Path) -> None:
    measures = read_folder(full)
    table = beside_published(measures.cells)
    own = [row for row in table.rows if row[0] == "this study"]
    assert len(own) == len(measures.cells)
    assert len(table.rows) == len(own) + len(published())
    cell = measures.cells[0]
    assert float(own[0][3]) == round(MNIST_SAMPLES / cell.images_per_s, 2)
    assert table.title in [made.title for made in scaling_content(measures).tables]


def test_other_data_is_not_compared_with_them(full: Path) -> None:
    assert beside_published(()).rows == ()
