"""One file from one server: whole, taken up again, or a reason in a few words."""

import time
from pathlib import Path

import pytest

from phalanx.data.published.download import DownloadError, TooLongError, download
from tests.data.published.mirror import Manner, Mirror, serve

CONTENT = bytes(range(256)) * 2000  # 512 000 bytes, several chunks


def get(mirror: Mirror, part: Path, *, timeout_s: float = 10) -> list[tuple[int, int | None]]:
    """Download; return the calls of `on_bytes`."""
    told: list[tuple[int, int | None]] = []
    download(
        f"{mirror.url}file",
        part,
        timeout_s=timeout_s,
        limit_bytes=1_000_000,
        on_bytes=lambda received, total: told.append((received, total)),
    )
    return told


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def test_a_whole_file_with_progress(part: Path) -> None:
    with serve({"file": CONTENT}) as mirror:
        told = get(mirror, part)
    assert part.read_bytes() == CONTENT
    assert mirror.ranges == [None]
    assert told == sorted(told)
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_a_cut_connection_keeps_what_came_and_is_taken_up(part: Path) -> None:
    with serve({"file": CONTENT}, "cut") as mirror:
        with pytest.raises(DownloadError, match="ended after 256000 of 512000 bytes"):
            get(mirror, part)
        assert part.read_bytes() == CONTENT[:256_000]
        mirror.manner = "ranges"
        told = get(mirror, part)
    assert mirror.ranges == [None, "bytes=256000-"]
    assert part.read_bytes() == CONTENT
    assert told[0][0] > 256_000
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_a_server_without_ranges_begins_anew(part: Path) -> None:
    part.write_bytes(b"?" * 1000)
    with serve({"file": CONTENT}, "no ranges") as mirror:
        get(mirror, part)
    assert mirror.ranges == ["bytes=1000-"]
    assert part.read_bytes() == CONTENT


def test_a_part_that_is_whole_is_left_alone(part: Path) -> None:
    part.write_bytes(CONTENT)
    with serve({"file": CONTENT}) as mirror:
        get(mirror, part)
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("silent", r"silent for 0\.3 s"),
        ("drip", r"only \d+ bytes came in 0 s"),
        ("error", "503 Service Unavailable"),
        ("wrong range", "asked for byte 10 and what follows, got 'bytes 11-511999/512000'"),
    ],
)
def test_a_bad_server_is_given_up_soon(part: Path, manner: Manner, reason: str) -> None:
    part.write_bytes(CONTENT[:10])
    began = time.monotonic()
    with (
        serve({"file": CONTENT}, manner) as mirror,
        pytest.raises(DownloadError, match=reason),
    ):
        get(mirror, part, timeout_s=0.3)
    assert time.monotonic() - began < 5
    assert part.read_bytes()[:10] == CONTENT[:10]


def test_an_endless_answer_is_stopped(part: Path) -> None:
    with (
        serve({"file": CONTENT}, "endless") as mirror,
        pytest.raises(TooLongError, match="more than 1000000 bytes came"),
    ):
        get(mirror, part)
    assert part.stat().st_size <= 1_000_000


def test_a_server_that_is_gone(part: Path) -> None:
    with serve({}) as mirror:
        pass
    with pytest.raises(DownloadError, match="Connection refused"):
        get(mirror, part)
    assert not part.exists()


def test_a_part_that_cannot_be_written_is_not_the_servers_fault(tmp_path: Path) -> None:
    with serve({"file": CONTENT}) as mirror, pytest.raises(FileNotFoundError):
        get(mirror, tmp_path / "no folder" / "file.part")
