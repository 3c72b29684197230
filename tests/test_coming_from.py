"""Lines that docs/coming_from.md tells a reader to write are in programs that the tests run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming_from.md").read_text()
SAME = {"dist.get_backend()": '"mpi"', "init_process_group(asked)": 'init_process_group("mpi")'}
"""What the programs, which run on Gloo too, write in place of a literal."""


def sections() -> Iterator[tuple[str, str]]:
    for text in PAGE.split("\n## ")[1:]:
        title, _, body = text.partition("\n")
        if re.search(r"^```(diff|python)", body, re.MULTILINE):
            yield title, body


def advised_lines(body: str) -> list[str]:
    """Return the lines that a program has in the end, without commands for the shell."""
    blocks = re.findall(r"^```(diff|python)\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
    lines = []
    for kind, text in blocks:
        kept = [line for line in text.splitlines() if kind == "python" or line[0] != "-"]
        lines += [line.lstrip("+").partition("  #")[0].strip() for line in kept]
    return [line for line in lines if line and not line.startswith("phalanx launch")]


@pytest.mark.parametrize(("title", "body"), [*sections()], ids=[title for title, _ in sections()])
def test_a_section_is_tested(title: str, body: str) -> None:
    assert "Tested: `" in body
    tested = body.partition("Tested: ")[2].partition("\n\n")[0]
    texts = [
        (ROOT / path).read_text() for path in re.findall(r"`((?:tests|examples)/\S+\.py)`", tested)
    ]
    program = "\n".join(texts)
    for written, literal in SAME.items():
        program = program.replace(written, literal)
    lines = [line.strip() for line in program.splitlines()]
    for advised in advised_lines(body):
        assert any(line.startswith(advised) for line in lines), advised
