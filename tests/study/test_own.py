"""A kind of study of the user's own: the example of docs/first_study.md, and what is refused."""

import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.errors import UserError
from phalanx.report.build import content_of
from phalanx.report.page import write_report
from phalanx.study.execute import PreparedStudy, execute, open_study
from phalanx.study.own import StudyFile, keep_file, own_folder, read_file, runs_of
from tests.report.made_view import check_claims, read, rows_of, table_of

DOCS = Path(__file__).parents[2] / "docs" / "first_study.md"
MOST_LINES = 150


def example(folder: Path) -> Path:
    """Write the program and the study of the page into a folder."""
    text = DOCS.read_text()
    blocks = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["rates.py", "rates.toml"]
    assert sum(body.count("\n") for _, body in blocks) <= MOST_LINES
    for name, body in blocks:
        (folder / name).write_text(body)
    return folder / "rates.toml"


@pytest.mark.timeout(300)  # eleven programs
def test_the_example_is_made_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forking_python: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(forking_python))
    file, folder = example(tmp_path), tmp_path / "study"
    study = read_file(file)
    planned = runs_of(study)
    assert len(planned) == 3 * 2 * 2 - 1
    assert planned[0].name == "seed-0-momentum-0.0-lr-0.01"
    keep_file(file, folder)
    prepared = PreparedStudy(kind=study.name, folder=folder, runs=planned)
    open_study(prepared, "phalanx study rates.toml")
    assert execute(folder, planned, Console(quiet=True)) == 0
    content, (view,) = read(folder)
    check_claims(content)
    table = table_of(view, "Configurations")
    assert table is not None
    rows = {(row["momentum"], row["lr"]): row for row in rows_of(table)}
    assert {key: row["seeds"] for key, row in rows.items()} == {
        ("0.0", "0.01"): "3", ("0.0", "0.1"): "3", ("0.9", "0.01"): "3", ("0.9", "0.1"): "2",
    }  # fmt: skip
    texts = [text for _, text in content.claims]
    assert any("final error" in text and "momentum 0.9" in text for text in texts)
    charts = [figure.title for figure in content.figures]
    assert charts == ["Error by learning rate", "Time of an epoch"]
    assert "Error by learning rate" in write_report(folder).read_text()
    console = Console(record=True, width=100)
    content_of(folder).print_summary(console)
    assert "final_error" in console.export_text()


def test_the_axes_make_a_grid() -> None:
    grid = StudyFile(
        name="s", axes={"seed": [0, 1], "lr": [0.1, 0.2]}, leave_out=[{"seed": 1, "lr": 0.1}]
    )
    assert [tuple(point.values()) for point in grid.points()] == [(0, 0.1), (0, 0.2), (1, 0.2)]


def test_without_a_program_the_axes_are_options_of_a_training(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        'name = "s"\n[run]\nmodel = "mlp"\n[axes]\nseed = [0]\nbatch_size = [64, 128]\n'
    )
    small, large = runs_of(read_file(file))
    assert (small.options["batch_size"], large.options["batch_size"]) == (64, 128)
    assert small.options["model"] == "mlp"
    assert own_folder(read_file(file), file) == own_folder(read_file(file), file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 3", "Expected `str`, got `int`"),
        ('name = "s"', "missing required field `axes`"),
        ('name = "s"\n[axes]\nlr = []', "lr needs at least one value"),
        ('name = "s"\nprogram = "p.py {width}"\n[axes]\nlr = [1]', "width"),
        ('name = "s"\n[axes]\nlr = [1]\n[page]\nbaseline = {width = 2}', "width is not an axis"),
        ('name = "s"\n[axes]\nlr = [1]\n[page]\npanels = "lr"', "unknown field `panels`"),
        (
            'name = "s"\n[axes]\nlr = [1]\n[[page.claims]]\nkind = "best"\nmeasure = "speed"',
            "speed is none of the measures",
        ),
        (
            'name = "s"\n[axes]\nlr = [1]\n[[page.charts]]\ntitle = "t"\nx = "lr"\ny = "loss"\n'
            'mark = "pie"',
            "pie is not one of lines, points, bars, curves",
        ),
    ],
)
def test_what_a_file_must_not_say(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        study = read_file(file)
        runs_of(study)
        keep_file(file, tmp_path / "study")
    assert not (tmp_path / "study" / "study.toml").exists()
