"""What is decided about DDP's buckets without any rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from phalanx.torch_backend.ddp import MEGABYTE, _has_room, bucket_cap_mb


@given(ranks=some.integers(1, 512), cache_bytes=some.integers(0, 2**31))
def test_size(ranks: int, cache_bytes: int) -> None:
    cap_mb = bucket_cap_mb(ranks, cache_bytes)
    assert 1 <= cap_mb <= 25
    assert cap_mb == 1 or ranks * cap_mb * MEGABYTE <= cache_bytes // 2


def test_size_on_a_known_cache() -> None:
    assert bucket_cap_mb(2, 32 * MEGABYTE) == 8
    assert bucket_cap_mb(8, 32 * MEGABYTE) == 2


def test_room() -> None:
    assert _has_room(1)


def test_without_the_folder_buckets_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.torch_backend.ddp.SHARED_MEMORY_FOLDER", "/nowhere")
    assert not _has_room(1)


def test_too_little_room_is_said() -> None:
    """A container has 64 MB of shared memory: training goes on, with copies."""
    with pytest.warns(UserWarning, match=r"--shm-size"):
        assert not _has_room(2**60)
