"""Every command line of README.md and docs/ is one that the commands take.

Blocks marked `bash` are run as well: tests/run/test_guides.py, test_first_hour.py and
tests/nodes/test_first_cluster.py.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import MissingArgumentError

from phalanx.cli.app import app
from phalanx.cli.program_words import separate_program

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND_LINE = ROOT / "docs" / "command_line.md"
FENCED = re.compile(r"^ *```([a-z]*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)((?: {4,}\S.*\n)+)")
LAUNCHERS = r"(?:(?:mpirun|mpiexec|srun|salloc)\b.*? |\S*bin/)?"
LINE = re.compile(rf"^[ $]*(?:[A-Z_]+=\S+ +)*{LAUNCHERS}phalanx +(.*?)(?: +#.*)?$", re.MULTILINE)
IN_PROSE = re.compile(r"(?<!`)`phalanx ([^`]+)`")
SHELL = re.compile(r"\s(?:\||>|2>|&)")  # what follows is not a word of the command
FILE = re.compile(r"\b(?:benchmarks|examples|tests)/(?!pytorch/)[a-z\d_/]+\.py\b")  # not Horovod's
TARGET = re.compile(r"(?:^[ $]*sudo |`|\n```\n)make ([a-z-]+)", re.MULTILINE)
HISTORY = {"log.md", "measurements.md"}
"""Pages that name scripts of earlier commits."""


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Return the blocks of a page, fenced or indented, each with its language."""
    found = FENCED.findall(text)
    return found + [("", block) for block in INDENTED.findall(FENCED.sub("", text))]


def documented() -> Iterator[tuple[str, bool]]:
    """Yield the words after `phalanx` of each command line, and whether it is in prose, which
    may name a command or an option alone."""
    for page in PAGES:
        text = page.read_text()
        for language, block in blocks_of(text):
            if language in ("", "bash"):
                for words in LINE.findall(block.replace("\\\n", " ")):
                    yield SHELL.split(words)[0], False
        for words in IN_PROSE.findall(FENCED.sub("", text)):
            yield SHELL.split(" ".join(words.split()))[0], True


def test_the_commands_take_every_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(
        ROOT / "src" / "phalanx" / "bench" / "io" / "profiles" / "resnet50.yaml", "mine.yaml"
    )
    options = re.search(r"```toml\n(.*?)```", COMMAND_LINE.read_text(), re.DOTALL)
    assert options is not None
    (tmp_path / "run.toml").write_text(options[1])
    lines = sorted(set(documented()))
    assert len(lines) > 100
    for line, is_in_prose in lines:
        words = shlex.split(line)
        if "…" in words:
            continue
        try:
            separated = separate_program(words)
            _, bound, *_ = app.parse_args(separated, exit_on_error=False, print_error=False)
            program = (
                [*map(str, bound.args[:1]), "-m"][0] if words[0] in ("launch", "check") else ""
            )
            assert program == "-m" or not program.startswith("-"), f"{line}: no such option"
        except MissingArgumentError:
            assert is_in_prose, line


def test_scripts_and_targets_of_make_exist() -> None:
    made = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
    texts = [page.read_text() for page in PAGES if page.name not in HISTORY]
    files = {file for text in texts for file in FILE.findall(text)}
    targets = {target for text in texts for target in TARGET.findall(text)}
    assert len(files) > 30 and len(targets) > 5
    assert not [file for file in files if not (ROOT / file).exists()]
    assert targets <= made
