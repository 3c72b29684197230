"""The published bytes are accepted, any others are not."""

import gzip
from pathlib import Path

import pytest

from phalanx.data.published.file_sets import (
    MNIST_FILES,
    TEST_LABELS,
    find_file,
    is_verified,
    read_verified,
)
from phalanx.errors import UserError


@pytest.mark.parametrize("file", MNIST_FILES, ids=lambda file: file.name)
def test_sizes_and_checksums_are_those_of_mnist(mnist_folder: Path, file) -> None:
    path = find_file(mnist_folder, file)
    assert path is not None
    assert len(read_verified(path, file)) == file.num_bytes
    assert is_verified(mnist_folder, file)


def test_the_unzipped_file_is_preferred(mnist_copy: Path) -> None:
    unzipped = mnist_copy / TEST_LABELS.name
    unzipped.write_bytes(gzip.decompress((mnist_copy / TEST_LABELS.gz_name).read_bytes()))
    assert find_file(mnist_copy, TEST_LABELS) == unzipped
    assert is_verified(mnist_copy, TEST_LABELS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0" * 10_007, "is truncated: expected 10008 bytes, found 10007"),
        (b"\0" * 20_000, "is too long: expected 10008 bytes, found more"),
        (b"\0" * 10_008, "has a wrong checksum: expected SHA-256 ff7bcfd416de3373…, found "),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_other_bytes_are_refused(
    tmp_path: Path, content: bytes, message: str, zipped: bool
) -> None:
    path = tmp_path / TEST_LABELS.gz_name
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(UserError, match=f"^{path} {message}[^\n]*\nremove it and run"):
        read_verified(path, TEST_LABELS)
    assert not is_verified(tmp_path, TEST_LABELS)
