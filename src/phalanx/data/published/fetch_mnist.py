"""Download of MNIST, trying one mirror after another; files are verified before they get names.

The standard library does it: files of a few megabytes ask for no more than urllib gives, and
mirrors compress differently, so that the known checksum is that of the unzipped bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from phalanx.data.file_lock import exclusive
from phalanx.data.published.file_sets import (
    MNIST_FILES,
    MNIST_MIRRORS,
    PublishedFile,
    is_verified,
)
from phalanx.errors import UserError
from phalanx.records.files import write_atomically

TIMEOUT_S = 30.0
MIN_BYTES_PER_S = 1024
_CHUNK_BYTES = 1 << 16
_GZIP_OVERHEAD_BYTES = 1 << 16  # more than gzip adds to bytes that it cannot compress

OnBytes = Callable[[int, int | None], None]
"""Called with the bytes received so far and the total, None where the server does not say."""


class DownloadListener(Protocol):
    """Callbacks for the progress of a download."""

    def note(self, line: str) -> None:
        """Something that the user should read: a mirror that failed, a file that was there."""

    def progress(self, file: str, received_bytes: int, total_bytes: int | None) -> None:
        """So many bytes of `file` are here; the total is None where the server does not say."""


class DownloadError(Exception):
    """Why the server did not deliver: a few words for the user."""


def fetch_mnist(
    folder: Path,
    listener: DownloadListener,
    *,
    mirrors: Sequence[str] = MNIST_MIRRORS,
    files: Sequence[PublishedFile] = MNIST_FILES,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Make `folder` hold all `files`, verified; those that are there already are not asked for.

    mirrors: web folders, asked in turn. timeout_s: the longest wait for a mirror.
    Raises: UserError when no mirror serves a file, `folder` cannot be written, or another process
            is fetching into it. Files that came are kept, and the next call goes on with the rest.
    """
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://")):
            raise UserError(f"a mirror is an http:// or https:// address, not {mirror!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / "fetch", timeout_s=0):
            for file in files:
                if is_verified(folder, file):
                    listener.note(f"{file.gz_name} already exists, verified")
                else:
                    _fetch_file(folder, file, listener, mirrors, timeout_s)
    except TimeoutError:
        raise UserError(f"another `phalanx data fetch` is writing to {folder}") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def _fetch_file(
    folder: Path,
    file: PublishedFile,
    listener: DownloadListener,
    mirrors: Sequence[str],
    timeout_s: float,
) -> None:
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{file.gz_name}"
        limit = file.num_bytes + _GZIP_OVERHEAD_BYTES
        try:
            content = download(
                url,
                timeout_s=timeout_s,
                limit_bytes=limit,
                on_bytes=partial(listener.progress, file.gz_name),
            )
            _check(content, file)
        except DownloadError as error:
            listener.note(f"{url}: {error}")
            continue
        write_atomically(folder / file.gz_name, content)
        (folder / file.name).unlink(missing_ok=True)  # a damaged copy, which would be read first
        return
    raise UserError(
        f"none of {len(mirrors)} mirrors served {file.gz_name}\nrun the same command to resume, "
        f"choose another mirror with --mirror, or copy the file to {folder}"
    )


def _check(content: bytes, file: PublishedFile) -> None:
    try:
        with gzip.open(io.BytesIO(content)) as unzipped:
            found = hashlib.sha256(unzipped.read(file.num_bytes + 1)).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        raise DownloadError("served a damaged file") from error
    assert file.sha256 is not None, "what is fetched is known"
    if found != file.sha256:
        raise DownloadError(
            f"served a file with a wrong checksum: expected SHA-256 {file.sha256[:16]}…, found "
            f"{found[:16]}…"
        )


def download(url: str, *, timeout_s: float, limit_bytes: int, on_bytes: OnBytes) -> bytes:
    """Return the content of `url`, which is held in memory.

    timeout_s: the longest silence, and the time in which MIN_BYTES_PER_S must come on average.
    limit_bytes: give up when more comes.
    Raises: DownloadError when the server fails.
    """
    request, content = urllib.request.Request(url, headers={"User-Agent": "phalanx"}), bytearray()
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            for chunk in _chunks(response, timeout_s):
                content += chunk
                if len(content) > limit_bytes:
                    raise DownloadError(f"more than {limit_bytes} bytes came")
                on_bytes(len(content), total)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(_in_words(error, timeout_s)) from error
    if total is not None and len(content) != total:
        raise DownloadError(f"the connection ended after {len(content)} of {total} bytes")
    return bytes(content)


def _chunks(response: http.client.HTTPResponse, timeout_s: float) -> Iterator[bytes]:
    """Yield the bytes as they come, until the end or until too few come."""
    window_start, window_bytes = time.monotonic(), 0
    while chunk := response.read1(_CHUNK_BYTES):
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
