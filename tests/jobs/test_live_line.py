"""The live line on a terminal, and what stays of it elsewhere."""

import io

import pytest
from rich.console import Console

from phalanx.jobs.live_line import LiveLine, bar, folded


def console(*, is_terminal: bool) -> tuple[Console, io.StringIO]:
    printed = io.StringIO()
    return Console(file=printed, width=80, force_terminal=is_terminal, highlight=False), printed


@pytest.mark.parametrize("label", [None, "run 1"])
def test_a_terminal_shows_the_text_and_others_the_lines_alone(label: str | None) -> None:
    for is_terminal in (True, False):
        shown, printed = console(is_terminal=is_terminal)
        with LiveLine(shown, label) as line:
            for output in (b"a [no", b"tice]\n\nthe ", b"end"):
                line.write(output)
            line.draw("1 so far")
        for words in ("a [notice]", "the end"):
            assert (words in printed.getvalue()) == (label is None)
        text = "run 1  1 so far" if label else "1 so far"
        assert (text in printed.getvalue()) == is_terminal


def test_elsewhere_than_on_a_terminal_each_tenth_of_a_phase_is_a_line() -> None:
    shown, printed = console(is_terminal=False)
    with LiveLine(shown) as line:
        for done in (0.0, 0.01, 0.1, 0.19, 1.0):
            line.show_phase("first", "work", done)
        line.show_phase("second", "more work", 1.0)
    assert [row.split("%")[0].split()[-1] for row in printed.getvalue().splitlines()] == [
        *("0", "10", "100", "100")
    ]
    assert printed.getvalue().splitlines()[-1].endswith("0 s  more work")


@pytest.mark.parametrize(
    ("done", "drawn"), [(0.0, "░" * 20), (0.5, "█" * 10 + "░" * 10), (1.0, "█" * 20)]
)
def test_the_bar_is_as_long_as_what_is_done(done: float, drawn: str) -> None:
    assert bar(done) == f"{drawn} {done:4.0%}"


def test_a_line_of_an_epoch_fits_the_terminal() -> None:
    """At 80 columns lines of 103 characters broke within words, and paths within their names."""
    line = (
        "epoch 1/5  loss 2.1234  validation 1.9876  accuracy 92.00%  33,292 images/s"
        "  communication 11.4%  0.25 s"
    )
    assert folded(line, 200) == line
    first, second = folded(line, 80).splitlines()
    assert first.endswith("33,292 images/s") and second == "    communication 11.4%  0.25 s"
    path = f"report: /{'a' * 200}/report.html"
    assert folded(path, 80) == path
