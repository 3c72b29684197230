"""Every command says what it does, in the list of its group and in its own help, with examples."""

import re
from pathlib import Path

import pytest
from cyclopts import App

from phalanx.cli.app import app
from phalanx.cli.main import main
from tests.cli.conftest import Phalanx


def commands_of(group: App, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Words of every command below a group, and of the groups."""
    found = []
    for name in group:
        if name.startswith("-"):
            continue
        found += [(*words, name), *commands_of(group[name], (*words, name))]
    return found


COMMANDS = commands_of(app)
GROUPS = sorted({words[:-1] for words in COMMANDS if words[:-1]})


def help_of(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    app.help_print([*words])
    return capsys.readouterr().out


def test_all_of_them_were_found() -> None:
    assert len(COMMANDS) >= 18
    assert ("data", "verify") in COMMANDS
    assert ("study", "large-batch") in COMMANDS


@pytest.mark.parametrize("words", [(), *GROUPS])
def test_no_line_of_a_list_is_blank(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in help_of(words, capsys).splitlines() if re.match(r"│ [-a-z]", line)]
    assert lines
    for line in lines:
        assert re.match(r"│ \S+( \(-\w\)| --no-\S+)? +[A-Z]", line), f"no help: {line}"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_examples(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(words, capsys)
    assert f"Usage: phalanx {' '.join(words)}" in text
    assert words in GROUPS or text.count(f" phalanx {' '.join(words)}") >= 3, (
        "the usage and two examples"
    )


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        ("", ("--compress ", "--servers ", "--zero-stage ", "--stages-per-rank "), ()),
        ("--strategy server", ("--servers ",), ("--compress ", "--zero-stage ", "--local-steps ")),
        ("--strategy=mpi", ("--compress ", "--link "), ("--servers ", "--micro-batches ")),
        ("--strategy mpi --bitwise", ("--micro-batches ",), ("--servers ", "--tensor-plan ")),
        ("--mesh dp=2,tp=2", ("--tensor-plan ", "--zero-stage ", "--mesh "), ("--compress ",)),
        ("--strategy", ("--compress ", "--servers "), ()),
    ],
)
def test_a_strategy_hides_the_options_of_others(
    words: str,
    shown: tuple[str, ...],
    hidden: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run of one strategy refuses them: 94 options in one list did not say so."""
    line = ["train", *words.split(), "--help"]
    monkeypatch.setattr("sys.argv", ["phalanx", *line])
    with pytest.raises(SystemExit) as ended:
        main(line)
    text = capsys.readouterr().out
    assert ended.value.code in (0, None)
    assert [option for option in (*shown, "--ranks ") if option not in text] == []
    assert [option for option in hidden if option in text] == []


def test_completion_is_installed(
    forked_phalanx: Phalanx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    done = forked_phalanx("--install-completion", "--shell", "bash")
    assert done.returncode == 0, done.stderr
    (script,) = (path for path in tmp_path.rglob("*phalanx*") if path.is_file())
    assert "verify" in script.read_text()
