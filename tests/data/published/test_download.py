"""One file from one server: whole, or a reason in a few words."""

import time

import pytest

from phalanx.data.published.fetch_mnist import DownloadError, download
from tests.data.published.mirror import Manner, Mirror, serve

CONTENT = bytes(range(256)) * 2000  # 512 000 bytes, several chunks


def get(mirror: Mirror, told: list[tuple[int, int | None]], *, timeout_s: float = 10) -> bytes:
    """Download; `told` gets the calls of `on_bytes`."""
    return download(
        f"{mirror.url}file",
        timeout_s=timeout_s,
        limit_bytes=1_000_000,
        on_bytes=lambda received, total: told.append((received, total)),
    )


def test_a_whole_file_with_progress() -> None:
    told: list[tuple[int, int | None]] = []
    with serve({"file": CONTENT}) as mirror:
        assert get(mirror, told) == CONTENT
    assert told == sorted(told)
    assert told[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("silent", r"silent for 0\.3 s"),
        ("drip", r"only \d+ bytes came in 0 s"),
        ("error", "503 Service Unavailable"),
        ("cut", "ended after 256000 of 512000 bytes"),
        ("endless", "more than 1000000 bytes came"),
    ],
)
def test_a_bad_server_is_given_up_soon(manner: Manner, reason: str) -> None:
    began = time.monotonic()
    with (
        serve({"file": CONTENT}, manner) as mirror,
        pytest.raises(DownloadError, match=reason),
    ):
        get(mirror, [], timeout_s=0.3 if manner in ("silent", "drip") else 10)
    assert time.monotonic() - began < 5


def test_a_server_that_is_gone() -> None:
    with serve({}) as mirror:
        pass
    with pytest.raises(DownloadError, match="Connection refused"):
        get(mirror, [])
