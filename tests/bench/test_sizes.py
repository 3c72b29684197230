"""Sizes as typed."""

import pytest

from phalanx.bench.sizes import DEFAULT_SIZES, parse_size, parse_sizes
from phalanx.errors import UserError
from phalanx.report.format import size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4", 4),
        ("64KB", 65_536),
        ("64k", 65_536),
        ("64KiB", 65_536),
        ("1.5 MB", 1_572_864),
        ("1GB", 2**30),
        ("12B", 12),
    ],
)
def test_units(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-4", "KB", "12XB", "0.3", "1e6", "4 4"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="not a size of at least one byte"):
        parse_size(text)


def test_several_with_commas_or_spaces_from_the_smallest_up_each_once() -> None:
    assert parse_sizes(("1MB,64KB", "4", "65536")) == (4, 65_536, 1_048_576)
    with pytest.raises(UserError, match="at least one value"):
        parse_sizes((",",))


def test_the_default_goes_from_4_bytes_to_64_megabytes() -> None:
    assert (DEFAULT_SIZES[0], DEFAULT_SIZES[-1]) == (4, 64 * 2**20)
    assert [size(number) for number in DEFAULT_SIZES[4:7]] == ["1 KB", "4 KB", "16 KB"]


def test_sizes_are_written_as_they_are_read() -> None:
    assert [size(n) for n in (12, 1000, 25 * 2**20, 2**30)] == ["12 B", "1,000 B", "25 MB", "1 GB"]
    assert parse_size(size(2**20 + 2**19)) == 2**20 + 2**19
