"""Files are counted before connections use them up."""

import os
import resource
from collections.abc import Iterator

import pytest

from phalanx.errors import UserError
from phalanx.jobs.open_files import (
    SPARE_FILES,
    check_file_limit,
    file_limit,
    files_needed,
    open_files,
    raise_file_limit,
    shortage,
)


@pytest.fixture
def few_files() -> Iterator[int]:
    """A soft limit a little above what is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_rank_needs_few_connections_among_many() -> None:
    assert files_needed(4, 2) == SPARE_FILES + 2
    assert files_needed(1024, 1008) <= 256
    assert files_needed(16_384, 16_368) <= 256


def test_too_few_are_named_with_the_number_needed(few_files: int) -> None:
    used = open_files()
    assert used is not None
    check_file_limit(4, 0)  # ranks of one node need no connection
    with pytest.raises(UserError, match="of 4, may have") as caught:
        check_file_limit(4, 2)
    assert f"may have {few_files} open files" in str(caught.value)
    assert f"ulimit -n {used + SPARE_FILES + 2}" in str(caught.value)
    raise_file_limit()
    assert file_limit() == file_limit(hard=True)
    check_file_limit(4, 2)


def test_a_rank_without_a_free_file_says_so(few_files: int) -> None:
    assert shortage() == ""
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(few_files)[:7]]
    try:
        assert f"all of its {few_files} files" in shortage()
    finally:
        for descriptor in taken:
            os.close(descriptor)
