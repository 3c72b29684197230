"""Published files: names, sizes and checksums, with those of MNIST."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from phalanx.data.gzip_file import read_unzipped, unzipped_size
from phalanx.errors import UserError
from phalanx.records.regular_file import readable


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """Size and SHA-256 are those of the unzipped bytes: mirrors compress differently."""

    name: str  # without .gz
    num_bytes: int
    sha256: str | None = None  # None where none was published
    zipped_md5: str | None = None  # of the file as it was published, which may be all there is
    how_to_get: str = "run `phalanx data fetch mnist`"

    @property
    def gz_name(self) -> str:
        return f"{self.name}.gz"

    @property
    def usual_name(self) -> str:
        """As it is in most folders."""
        return self.name if self.name.endswith(".bin") else self.gz_name

    @property
    def remedy(self) -> str:
        return f"remove it and {self.how_to_get}, or name another copy with --data-root"


TRAIN_IMAGES = PublishedFile(
    name="train-images-idx3-ubyte",
    num_bytes=47_040_016,
    sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
)
TRAIN_LABELS = PublishedFile(
    name="train-labels-idx1-ubyte",
    num_bytes=60_008,
    sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
)
TEST_IMAGES = PublishedFile(
    name="t10k-images-idx3-ubyte",
    num_bytes=7_840_016,
    sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
)
TEST_LABELS = PublishedFile(
    name="t10k-labels-idx1-ubyte",
    num_bytes=10_008,
    sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
MNIST_FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
)


def find_file(folder: Path, file: PublishedFile) -> Path | None:
    """The file in `folder`, unzipped by preference: it reads faster."""
    candidates = (folder / file.name, folder / file.gz_name)
    with readable():
        return next((path for path in candidates if path.is_file()), None)


def check_size(path: Path, file: PublishedFile) -> None:
    """Raises UserError when `path` is cut short or too long; costs no unzipping when it is not."""
    found_bytes = unzipped_size(path, file.num_bytes)
    if found_bytes < file.num_bytes:
        raise UserError(
            f"{path} is truncated: expected {file.num_bytes} bytes, found {found_bytes}\n"
            f"{file.remedy}"
        )
    if found_bytes > file.num_bytes:
        raise UserError(
            f"{path} is too long: expected {file.num_bytes} bytes, found more\n{file.remedy}"
        )


def read_verified(path: Path, file: PublishedFile) -> bytes:
    """The unzipped bytes of `path`, of the published size and, where that is known, SHA-256.

    Raises: UserError when one of them is another.
    """
    check_size(path, file)
    content = read_unzipped(path, limit_bytes=file.num_bytes + 1)
    if file.sha256 is None:
        return content
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise UserError(
            f"{path} has a wrong checksum: expected SHA-256 {file.sha256[:16]}…, "
            f"found {found[:16]}…\n{file.remedy}"
        )
    return content


def is_verified(folder: Path, file: PublishedFile) -> bool:
    """Return whether `folder` holds the file with its published bytes, by SHA-256 or else MD5."""
    path = find_file(folder, file)
    if path is None:
        return False
    if file.sha256 is None:
        zipped = folder / file.gz_name
        return zipped.is_file() and _md5(zipped) == file.zipped_md5
    try:
        return bool(read_verified(path, file))
    except UserError:
        return False


def _md5(path: Path) -> str:
    """Return the MD5 of a file; detects damage, not malice."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
