"""Published values beside a study: shown with their source, and nothing made of them."""

from dataclasses import replace
from pathlib import Path

from phalanx.report.pages.scaling import MNIST_SAMPLES, published
from tests.report.made_events import set_otherwise
from tests.report.made_study import Job
from tests.report.made_view import measured, read, table_of, view_of


def test_every_published_value_has_a_source_and_says_what_differs() -> None:
    assert published()
    for entry in published():
        assert (entry["source"] or "").startswith("https://")
        assert entry["differs"] and entry["study"] and entry["split"]


def test_a_study_of_images_stands_beside_them(full: Path) -> None:
    _, (view,) = read(full)
    table = table_of(view, "Beside published studies")
    assert table is not None
    own = [row for row in table.rows if row[0] == "this study"]
    cells = view.frame("cells")
    assert len(own) == len(cells)
    assert len(table.rows) == len(own) + len(published())
    assert float(own[0][3]) == round(MNIST_SAMPLES / cells[0]["rate"], 2)


def test_other_data_is_not_compared_with_them() -> None:
    run = measured(Job("mlp", "sequential"), 1.0)
    assert run.run is not None
    view = view_of([replace(run, run=set_otherwise(run.run, dataset="text"))])
    assert table_of(view, "Beside published studies") is None
