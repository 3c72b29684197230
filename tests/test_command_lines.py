"""Every command line of README.md and docs/ is one that the commands take."""

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
BLOCK = re.compile(r"^ *```[a-z]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
LINE = re.compile(r"^[ $]*(?:[A-Z_]+=\S+ +)*phalanx +(.*?)(?: +#.*)?$", re.MULTILINE)
IN_PROSE = re.compile(r"(?<!`)`phalanx ([^`]+)`")
SHELL = re.compile(r"\s(?:\||>|2>|&)")  # what follows is not a word of the command
GONE = {"scratch"}
"""Commands that docs name beside their successors."""


def documented() -> Iterator[tuple[str, bool]]:
    """Yield the words after `phalanx` of each command line, and whether it is in prose, which
    may name a command or an option alone."""
    for page in PAGES:
        text = page.read_text()
        for block in BLOCK.findall(text):
            for words in LINE.findall(block.replace("\\\n", " ")):
                yield SHELL.split(words)[0], False
        for words in IN_PROSE.findall(BLOCK.sub("", text)):
            yield SHELL.split(" ".join(words.split()))[0], True


def test_the_commands_take_every_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(
        ROOT / "src" / "phalanx" / "bench" / "io" / "profiles" / "resnet50.yaml", "mine.yaml"
    )
    lines = sorted(set(documented()))
    assert len(lines) > 100
    for line, is_in_prose in lines:
        words = shlex.split(line)
        if "…" in words or words[0] in GONE:
            continue
        try:
            app.parse_args(separate_program(words), exit_on_error=False, print_error=False)
        except MissingArgumentError:
            assert is_in_prose, line
