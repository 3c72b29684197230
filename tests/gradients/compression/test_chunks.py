from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from phalanx.gradients.compression import codec_compressor
from phalanx.gradients.compression.codec import BlockInt8, Cast, Codec, ScaledFloat16
from phalanx.gradients.compression.codec_compressor import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    ShardChunks,
    shards_of,
)
from phalanx.gradients.compression.make import make_compressor
from tests.conftest import Ranks
from tests.gradients.compression.thread_backend import ThreadBackend, run

CODECS = [Cast(torch.float32), Cast(torch.bfloat16), ScaledFloat16(), BlockInt8()]


@given(st.integers(0, 5000), st.integers(1, 9), st.sampled_from([1, 256]))
def test_shards_cover_everything_once_and_begin_at_blocks(count: int, size: int, unit: int) -> None:
    shards = shards_of(count, size, unit)
    assert [i for shard in shards for i in shard] == list(range(count))
    assert all(shard.start % unit == 0 or not len(shard) for shard in shards)


@given(st.integers(0, 6_000_000), st.integers(1, 5), st.sampled_from(CODECS))
def test_chunks_cover_each_shard_in_order_and_are_not_short(
    count: int, size: int, codec: Codec
) -> None:
    layout = ShardChunks(count, size, codec)
    assert 1 <= layout.num_chunks <= MAX_CHUNKS
    for shard, found, starts in zip(layout.shards, layout.chunks, layout.starts, strict=True):
        assert len(found) == layout.num_chunks == len(starts) - 1
        assert found[0].start == shard.start and found[-1].stop == shard.stop
        assert all(a.stop == b.start for a, b in pairwise(found))
        assert all((p.start - shard.start) % codec.unit == 0 or not len(p) for p in found)
        assert all(start % 4 == 0 for start in starts)
    if layout.num_chunks > 1:
        shortest = min(b - a for starts in layout.starts for a, b in pairwise(starts))
        assert shortest >= 0.9 * CHUNK_BYTES


def test_a_small_vector_is_one_chunk() -> None:
    assert ShardChunks(2 * CHUNK_BYTES - 64, 2, Cast(torch.bfloat16)).num_chunks == 1
    assert ShardChunks(5 * CHUNK_BYTES, 2, Cast(torch.bfloat16)).num_chunks == 5


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_chunks_change_no_bit(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor of the residual, and so of later sums. (fp16 has a scale for each chunk.)"""

    def program(ranks: ThreadBackend) -> list[Tensor]:
        generator = torch.Generator().manual_seed(ranks.rank)
        compressor, sums = make_compressor(name), []
        for _ in range(3):
            values = torch.randn(20_011, generator=generator)
            compressor.reduce(0, values, ranks)
            sums.append(values)
        return sums

    whole = run(size, program)
    monkeypatch.setattr(codec_compressor, "CHUNK_BYTES", 1500)
    assert ShardChunks(20_011, size, BlockInt8()).num_chunks >= 4
    for sums in run(size, program):
        assert all(map(torch.equal, sums, whole[0]))


@pytest.mark.mpi
def test_chunks_are_sent_while_others_are_encoded(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    """The sums are those of shared memory, bit for bit; who does not come is named."""
    assert ranks.mpi(3, programs("chunks.py")).count("is done") == 3
