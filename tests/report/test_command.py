"""`phalanx report`, as typed."""

from pathlib import Path

import pytest

from phalanx.cli.main import main


@pytest.fixture(autouse=True)
def restored_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave signals of the process of the tests as they are: SIGTERM once ended a worker."""
    monkeypatch.setattr("phalanx.cli.main.handle_termination_signals", lambda: None)


def end_of(words: list[str]) -> object:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_the_path_of_the_page_is_printed(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert end_of(["report", str(alone), "--output", str(page)]) in (0, None)
    assert str(page) in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")


def test_bad_input_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert end_of(["report", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "neither study.json nor run.json" in told
    assert "Traceback" not in told


def test_a_page_that_cannot_be_written(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert end_of(["report", str(alone), "--output", str(tmp_path / "file" / "page.html")]) == 2
    assert "the report cannot be written to" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == ""
