"""Predictions beside measurements, as a terminal and a page show them."""

from pathlib import Path

import pytest
from rich.console import Console
from rich.markdown import Markdown

from phalanx.errors import UserError
from phalanx.plan.published import left_out, predicted_rows, read_series
from phalanx.plan.validation import read_measured, validation_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plan_validation.md"
WORDS = next(line for line in PAGE.read_text().splitlines() if "phalanx plan --validate" in line)
FILES = WORDS.split("--here ")[1].split(" --page")[0].split()


def test_page_is_what_the_command_makes() -> None:
    """Made again: run the command that the page names."""
    measured = read_measured(ROOT / name for name in FILES)
    words = ["--here", *FILES, "--page", str(PAGE.relative_to(ROOT))]
    assert validation_page(predicted_rows(), measured, words) == PAGE.read_text()


def test_terminal_shows_every_table_in_80_columns() -> None:
    page = validation_page(predicted_rows(), read_measured(ROOT / name for name in FILES))
    console = Console(width=80)
    with console.capture() as shown:
        console.print(Markdown(page))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert all(name in text for name in {series.table for series in read_series()})
    assert all(name in text for name in left_out())


def test_worst_table_stands_first() -> None:
    rows = validation_page(predicted_rows(), read_measured([])).partition("\n|  | rows |")[2]
    means = [float(row.split("|")[3]) for row in rows.partition("\n| all")[0].splitlines()[2:]]
    assert len(means) > 5
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("text", ["", "[]", '{"here": [{"model": "cnn"}]}', '{"here": 3}'])
def test_a_damaged_file_of_rounds_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "rounds.json").write_text(text)
    with pytest.raises(UserError, match=r"rounds\.json is no file of rounds: .*--rounds 9 --json"):
        read_measured([tmp_path / "rounds.json"])
    with pytest.raises(UserError, match="No such file"):
        read_measured([tmp_path / "none.json"])
