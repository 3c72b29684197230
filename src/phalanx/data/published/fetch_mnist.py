"""Download of MNIST, trying one mirror after another; files are verified before renaming."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from phalanx.data.file_lock import exclusive
from phalanx.data.gzip_file import read_unzipped
from phalanx.data.published.download import (
    DownloadError,
    OnBytes,
    TooLongError,
    download,
)
from phalanx.data.published.file_sets import (
    MNIST_FILES,
    MNIST_MIRRORS,
    PublishedFile,
    is_verified,
)
from phalanx.errors import UserError

TIMEOUT_S = 30.0
_GZIP_OVERHEAD_BYTES = 1 << 16  # more than gzip adds to bytes that it cannot compress


class DownloadListener(Protocol):
    """Callbacks for the progress of a download."""

    def note(self, line: str) -> None:
        """Something that the user should read: a mirror that failed, a file that was there."""

    def progress(self, file: str, received_bytes: int, total_bytes: int | None) -> None:
        """So many bytes of `file` are here; the total is None where the server does not say."""


class _WrongBytesError(DownloadError):
    """The received bytes are not the published file."""


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
            is fetching into it. What was received is kept, and the next call goes on from there.
    """
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://")):
            raise UserError(f"a mirror is an http:// or https:// address, not {mirror!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / "fetch", timeout_s=0):
            for file in files:
                if is_verified(folder, file):
                    listener.note(f"{file.gz_name} is there already, verified")
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
    part = folder / f"{file.gz_name}.part"
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{file.gz_name}"
        try:
            _fetch_from(url, part, file, timeout_s, partial(listener.progress, file.gz_name))
        except DownloadError as error:
            listener.note(f"{url}: {error}")
            continue
        part.replace(folder / file.gz_name)
        (folder / file.name).unlink(missing_ok=True)  # a damaged copy, which would be read first
        return
    raise UserError(
        f"none of {len(mirrors)} mirrors served {file.gz_name}\n"
        f"run it again to go on from here, name another with --mirror, or copy it to {folder}"
    )


def _fetch_from(
    url: str, part: Path, file: PublishedFile, timeout_s: float, on_bytes: OnBytes
) -> None:
    """Leave in `part` the published file as this mirror compressed it.

    A part that was begun elsewhere may not fit what this mirror sends: then it begins anew.
    """
    has_begun = part.exists()
    while True:
        try:
            download(
                url,
                part,
                timeout_s=timeout_s,
                limit_bytes=file.num_bytes + _GZIP_OVERHEAD_BYTES,
                on_bytes=on_bytes,
            )
            return _check(part, file)
        except (_WrongBytesError, TooLongError):
            part.unlink(missing_ok=True)
            if not has_begun:
                raise
            has_begun = False


def _check(part: Path, file: PublishedFile) -> None:
    try:
        content = read_unzipped(part, limit_bytes=file.num_bytes + 1)
    except UserError as error:
        raise _WrongBytesError("served a damaged file, which was removed") from error
    found = hashlib.sha256(content).hexdigest()
    assert file.sha256 is not None, "what is fetched is known"
    if found != file.sha256:
        raise _WrongBytesError(
            f"served a file with a wrong checksum, which was removed: expected SHA-256 "
            f"{file.sha256[:16]}…, found {found[:16]}…"
        )
