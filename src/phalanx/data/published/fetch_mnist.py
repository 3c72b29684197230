"""Download of MNIST, trying one mirror after another; files are verified before they get names.

The standard library does it: files of a few megabytes ask for no more than urllib gives, and
mirrors compress differently, so that the known checksum is that of the unzipped bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.data.published.file_sets import (
    MNIST_FILES,
    MNIST_MIRRORS,
    PublishedFile,
    is_verified,
)
from phalanx.errors import UserError
from phalanx.records.files import write_atomically

TIMEOUT_S = 30.0
_GZIP_OVERHEAD_BYTES = 1 << 16  # more than gzip adds to bytes that it cannot compress


class DownloadError(Exception):
    """Why the server did not deliver: a few words for the user."""


def fetch_mnist(
    folder: Path,
    note: Callable[[str], None],
    *,
    mirrors: Sequence[str] = MNIST_MIRRORS,
    files: Sequence[PublishedFile] = MNIST_FILES,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Make `folder` hold all `files`, verified; those that are there already are not asked for.

    note: gets lines for the user: a mirror that failed, a file that was there. mirrors: web
    folders, asked in turn. timeout_s: the longest wait for a mirror.
    Raises: UserError when no mirror serves a file, or `folder` cannot be written. Files that came
            are kept, and the next call goes on with the rest.
    """
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://")):
            raise UserError(f"a mirror is an http:// or https:// address, not {mirror!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            if is_verified(folder, file):
                note(f"{file.gz_name} is there already, verified")
            else:
                _fetch_file(folder, file, note, mirrors, timeout_s)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def _fetch_file(
    folder: Path,
    file: PublishedFile,
    note: Callable[[str], None],
    mirrors: Sequence[str],
    timeout_s: float,
) -> None:
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{file.gz_name}"
        limit = file.num_bytes + _GZIP_OVERHEAD_BYTES
        try:
            content = download(url, timeout_s=timeout_s, limit_bytes=limit)
            _check(content, file)
        except DownloadError as error:
            note(f"{url}: {error}")
            continue
        write_atomically(folder / file.gz_name, content)
        (folder / file.name).unlink(missing_ok=True)  # a damaged copy, which would be read first
        return
    raise UserError(
        f"none of {len(mirrors)} mirrors served {file.gz_name}\n"
        f"run it again to go on from here, name another with --mirror, or copy it to {folder}"
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


def download(url: str, *, timeout_s: float, limit_bytes: int) -> bytes:
    """Return the content of `url`, which is held in memory.

    timeout_s: the longest silence. limit_bytes: give up when more comes.
    Raises: DownloadError when the server fails.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "phalanx"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            content: bytes = response.read(limit_bytes + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        silent = f"silent for {timeout_s:g} s" if isinstance(reason, TimeoutError) else ""
        raise DownloadError(silent or getattr(reason, "strerror", "") or str(reason)) from error
    if len(content) > limit_bytes:
        raise DownloadError(f"more than {limit_bytes} bytes came")
    if (total := response.headers.get("Content-Length", "")).isdecimal() and len(content) < int(
        total
    ):
        raise DownloadError(f"the connection ended after {len(content)} of {total} bytes")
    return content
