"""File sets of published data sets: their files and usual folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.data.gzip_file import read_unzipped, unzipped_size
from phalanx.errors import UserError
from phalanx.records.files import cache_folder
from phalanx.records.regular_file import readable


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """Size and SHA-256 are those of the unzipped bytes: mirrors compress differently."""

    name: str  # excludes .gz
    num_bytes: int
    sha256: str | None = None  # None where none was published
    zipped_md5: str | None = None  # MD5 of the published file, which may be all there is
    how_to_get: str = "run `phalanx data fetch mnist`"

    @property
    def gz_name(self) -> str:
        return f"{self.name}.gz"

    @property
    def usual_name(self) -> str:
        """Name of the file in most folders."""
        return self.name if self.name.endswith(".bin") else self.gz_name

    @property
    def remedy(self) -> str:
        return f"remove it and {self.how_to_get}, or use another copy with --data-root"


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
    if found_bytes != file.num_bytes:
        is_short = found_bytes < file.num_bytes
        fault, found = ("is truncated", found_bytes) if is_short else ("is too long", "more")
        raise UserError(
            f"{path} {fault}: expected {file.num_bytes} bytes, found {found}\n{file.remedy}"
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
        zipped = folder / file.gz_name  # its MD5 detects damage, not malice
        if not zipped.is_file():
            return False
        md5 = hashlib.md5(zipped.read_bytes(), usedforsecurity=False)
        return md5.hexdigest() == file.zipped_md5
    try:
        return bool(read_verified(path, file))
    except UserError:
        return False


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """The files of a data set."""

    title: str
    files: tuple[PublishedFile, ...]

    layouts: tuple[str, ...]
    """Folders of the files below a root: the root may be their folder, or that which other tools
    were given."""

    how_to_get: str
    """Ends a sentence about what is missing."""

    unlike: PublishedFile | None = None
    """A folder in which this very file is holds another data set by the same names."""

    unusable: str = ""
    """A folder or archive below a root that holds the data in a form that is not read."""


MNIST = FileSet(
    title="MNIST",
    files=MNIST_FILES,
    layouts=("", "mnist", "MNIST/raw"),
    how_to_get="get it with `phalanx data fetch mnist`, or set its folder with --data-root or "
    "$PHALANX_DATA",
)

_FASHION_SOURCE = "from https://github.com/zalandoresearch/fashion-mnist"
_FASHION_MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
FASHION = FileSet(
    title="Fashion-MNIST",
    files=tuple(
        PublishedFile(
            name=file.name,
            num_bytes=file.num_bytes,
            zipped_md5=_FASHION_MD5[file.name],
            how_to_get=f"download it again {_FASHION_SOURCE}",
        )
        for file in MNIST_FILES
    ),
    layouts=("fashion", "FashionMNIST/raw", "fashion-mnist", ""),
    how_to_get=f"download its four files {_FASHION_SOURCE} to a folder `fashion` of --data-root or "
    "$PHALANX_DATA",
    unlike=TRAIN_LABELS,
)

CIFAR_BATCH_BYTES = 10_000 * (1 + 3 * 32 * 32)
_CIFAR_SOURCE = "from https://www.cs.toronto.edu/~kriz/cifar.html"
CIFAR10 = FileSet(
    title="CIFAR-10",
    files=tuple(
        PublishedFile(
            name=name,
            num_bytes=CIFAR_BATCH_BYTES,
            how_to_get=f"download the binary version again {_CIFAR_SOURCE}",
        )
        for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    ),
    layouts=("cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin", ""),
    how_to_get=f"download the binary version, cifar-10-binary.tar.gz, {_CIFAR_SOURCE} and unpack "
    "it in --data-root or $PHALANX_DATA",
    unusable="cifar-10-batches-py",
)


def find_folder(roots: Sequence[Path], files: FileSet) -> Path | None:
    """The first folder that holds all of them."""
    return next((folder for folder in _folders(roots, files) if not missing(folder, files)), None)


def what_is_missing(roots: Sequence[Path], files: FileSet) -> str:
    """Names what an incomplete copy lacks, or the places where there is none at all."""
    for folder in _folders(roots, files):
        absent = missing(folder, files)
        if len(absent) < len(files.files):
            return f"the {files.title} in {folder} lacks {', '.join(absent)}"
    for folder in _folders(roots, files):
        if files.unusable and (folder / files.unusable).is_dir():
            return (
                f"the {files.title} in {folder / files.unusable} consists of pickles, which can "
                "run any program and are not read"
            )
    return f"there is no {files.title} in {' or '.join(map(str, roots))}"


def missing(folder: Path, files: FileSet) -> list[str]:
    return [file.usual_name for file in files.files if find_file(folder, file) is None]


def _folders(roots: Sequence[Path], files: FileSet) -> list[Path]:
    folders = [root / layout for root in roots for layout in files.layouts]
    return [f for f in folders if files.unlike is None or not is_verified(f, files.unlike)]


def search_roots(data_root: Path | None) -> list[Path]:
    """Return the folders to search, in order. A requested root is the only one.

    Raises: UserError when that root does not exist.
    """
    if data_root is not None:
        if not data_root.is_dir():
            raise UserError(f"--data-root {data_root} is not a folder")
        return [data_root]
    variable = os.environ.get("PHALANX_DATA")
    return [*([Path(variable)] if variable else []), cache_folder()]
