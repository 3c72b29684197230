"""Resumable download of one file from one server.

The standard library does it: a handful of files ask for no more than urllib gives.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

MIN_BYTES_PER_S = 1024
_CHUNK_BYTES = 1 << 16

OnBytes = Callable[[int, int | None], None]
"""Called with the bytes received so far and the total, None where the server does not say."""


class DownloadError(Exception):
    """Why the server did not deliver: a few words for the user."""


class TooLongError(DownloadError):
    """The server sends more than the file can have."""


def download(
    url: str, part: Path, *, timeout_s: float, limit_bytes: int, on_bytes: OnBytes
) -> None:
    """Download `url` into `part`, resuming after the bytes that it already holds.

    timeout_s: the longest silence, and the time in which MIN_BYTES_PER_S must come on average.
    limit_bytes: give up when more comes.
    Raises: DownloadError when the server fails, `part` then keeps what came; OSError when `part`
            cannot be written.
    """
    offset = part.stat().st_size if part.exists() else 0
    response = _open(url, offset, timeout_s)
    if response is None:
        return
    with response:
        start, total = _extent(response, offset)
        received = start
        with part.open("ab" if start else "wb") as file:
            for chunk in _chunks(response, timeout_s):
                received += len(chunk)
                if received > limit_bytes:
                    raise TooLongError(f"more than {limit_bytes} bytes came")
                file.write(chunk)
                on_bytes(received, total)
    if total is not None and received != total:
        raise DownloadError(f"the connection ended after {received} of {total} bytes")


def _open(url: str, offset: int, timeout_s: float) -> http.client.HTTPResponse | None:
    """The server's answer, or None when it has nothing beyond `offset`."""
    headers = {"User-Agent": "phalanx"} | ({"Range": f"bytes={offset}-"} if offset else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        if offset and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        raise DownloadError(f"{error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(_in_words(error, timeout_s)) from error
    return response


def _extent(response: http.client.HTTPResponse, offset: int) -> tuple[int, int | None]:
    """Where the bytes that follow begin, and how many the whole file has."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:  # the server knows no ranges
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    content_range = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", content_range)
    if match is None or int(match[1]) != offset:
        raise DownloadError(f"asked for byte {offset} and what follows, got {content_range!r}")
    return offset, int(match[2]) if match[2] != "*" else None


def _chunks(response: http.client.HTTPResponse, timeout_s: float) -> Iterator[bytes]:
    """The bytes as they come, until the end or until too few come."""
    window_start, window_bytes = time.monotonic(), 0
    while True:
        try:
            chunk = response.read1(_CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(_in_words(error, timeout_s)) from error
        if not chunk:
            return
        yield chunk
        window_bytes += len(chunk)
        elapsed_s = time.monotonic() - window_start
        if elapsed_s >= timeout_s:
            if window_bytes < MIN_BYTES_PER_S * elapsed_s:
                raise DownloadError(f"only {window_bytes} bytes came in {elapsed_s:.0f} s")
            window_start, window_bytes = time.monotonic(), 0


def _in_words(error: Exception, timeout_s: float) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"silent for {timeout_s:g} s"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__
