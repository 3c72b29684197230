"""The charts' library is made once on a machine, and kept where it cannot be taken for another."""

from pathlib import Path

import pytest

from phalanx.report import page


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls that made the library, whose cache is a folder of the test's."""
    made: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        page.vl_convert, "javascript_bundle", lambda text: made.append(text) or "let a = 1\n//é"
    )
    return made


def library() -> str:
    page._library_script.cache_clear()
    try:
        return page._library_script()
    finally:
        page._library_script.cache_clear()


def test_it_is_made_once(calls: list[str]) -> None:
    assert [library(), library()] == 2 * ["let a = 1\n//é"]
    assert calls == [page.LIBRARIES]


@pytest.mark.parametrize("damage", [b"", b"let a", b"\xff\xfe", b"0\nlet a = 2"])
def test_a_damaged_one_is_made_anew(calls: list[str], tmp_path: Path, damage: bytes) -> None:
    whole = library()
    (file,) = (tmp_path / "phalanx" / "pages").iterdir()
    kept = file.read_bytes()
    file.write_bytes(damage)
    assert library() == whole
    assert (len(calls), file.read_bytes()) == (2, kept)


def test_one_of_somebody_else_is_not_taken(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library()
    monkeypatch.setattr(page.os, "getuid", lambda: 12345)
    library()
    assert len(calls) == 2


def test_a_page_needs_no_cache(calls: list[str], tmp_path: Path) -> None:
    (tmp_path / "phalanx").write_text("a file where the folder was to be")
    assert library() == library()
    assert len(calls) == 2
