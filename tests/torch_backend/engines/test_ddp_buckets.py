"""What is decided about DDP's buckets without any rank."""

import os
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as some

from phalanx.torch_backend.ddp import (
    MEGABYTE,
    MOST_BUCKETS,
    _has_descriptors,
    _has_room,
    bucket_cap_mb,
)


@given(
    ranks=some.integers(1, 512),
    cache_bytes=some.integers(0, 2**31),
    model_bytes=some.integers(0, 2**40),
)
def test_size(ranks: int, cache_bytes: int, model_bytes: int) -> None:
    cap_mb = bucket_cap_mb(ranks, cache_bytes, model_bytes)
    assert cap_mb >= 1
    assert model_bytes <= MOST_BUCKETS * cap_mb * MEGABYTE
    if cap_mb > max(1, -(-model_bytes // MOST_BUCKETS // MEGABYTE)):
        assert cap_mb <= 25
        assert ranks * cap_mb * MEGABYTE <= cache_bytes // 2


def test_size_on_a_known_cache() -> None:
    assert bucket_cap_mb(2, 32 * MEGABYTE, 100 * MEGABYTE) == 8
    assert bucket_cap_mb(8, 32 * MEGABYTE, 100 * MEGABYTE) == 2


def test_a_large_model_has_no_more_buckets_than_a_process_has_descriptors() -> None:
    assert bucket_cap_mb(16, 32 * MEGABYTE, 100 * MEGABYTE) == 1
    assert bucket_cap_mb(16, 32 * MEGABYTE, 1024 * MEGABYTE) == 8
    assert bucket_cap_mb(16, 32 * MEGABYTE, 28_000 * MEGABYTE) == 219


def test_few_descriptors_are_said() -> None:
    assert _has_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * used - 4, hard))
    try:
        with pytest.warns(UserWarning, match=rf"half of the {2 * used - 4} file descriptors"):
            assert not _has_descriptors()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        with pytest.warns(UserWarning, match="all of the 3 file descriptors"):
            assert not _has_descriptors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_room() -> None:
    assert _has_room(1)


def test_without_the_folder_buckets_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.torch_backend.ddp.SHARED_MEMORY_FOLDER", "/nowhere")
    assert not _has_room(1)


def test_too_little_room_is_said() -> None:
    """A container has 64 MB of shared memory: training goes on, with copies."""
    with pytest.warns(UserWarning, match=r"--shm-size"):
        assert not _has_room(2**60)
