from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from phalanx.parallel.compression import pieces
from phalanx.parallel.compression.coding import Blocks, Brain, Coding, Half, Whole
from phalanx.parallel.compression.make import make_compressor
from phalanx.parallel.compression.pieces import MOST_PIECES, PIECE_BYTES, Cut, shares_of
from tests.conftest import Ranks
from tests.parallel.compression.thread_ranks import ThreadRanks, run

CODINGS = [Whole(), Brain(), Half(), Blocks()]


@given(st.integers(0, 5000), st.integers(1, 9), st.sampled_from([1, 256]))
def test_shares_cover_everything_once_and_begin_at_blocks(count: int, size: int, unit: int) -> None:
    shares = shares_of(count, size, unit)
    assert [i for share in shares for i in share] == list(range(count))
    assert all(share.start % unit == 0 or not len(share) for share in shares)


@given(st.integers(0, 6_000_000), st.integers(1, 5), st.sampled_from(CODINGS))
def test_pieces_cover_each_share_in_order_and_are_not_short(
    count: int, size: int, coding: Coding
) -> None:
    cut = Cut(count, size, coding)
    assert 1 <= cut.num_pieces <= MOST_PIECES
    for share, found, starts in zip(cut.shares, cut.pieces, cut.starts, strict=True):
        assert len(found) == cut.num_pieces == len(starts) - 1
        assert found[0].start == share.start and found[-1].stop == share.stop
        assert all(a.stop == b.start for a, b in pairwise(found))
        assert all((p.start - share.start) % coding.unit == 0 or not len(p) for p in found)
        assert all(start % 4 == 0 for start in starts)
    if cut.num_pieces > 1:
        shortest = min(b - a for starts in cut.starts for a, b in pairwise(starts))
        assert shortest >= 0.9 * PIECE_BYTES


def test_what_is_small_is_one_piece() -> None:
    assert Cut(2 * PIECE_BYTES - 64, 2, Brain()).num_pieces == 1
    assert Cut(5 * PIECE_BYTES, 2, Brain()).num_pieces == 5


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_pieces_change_no_bit(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what is kept, and so no later sum. (fp16 has a scale for each piece.)"""

    def program(ranks: ThreadRanks) -> list[Tensor]:
        generator = torch.Generator().manual_seed(ranks.rank)
        compressor, sums = make_compressor(name), []
        for _ in range(3):
            values = torch.randn(20_011, generator=generator)
            compressor.reduce(0, values, ranks)
            sums.append(values)
        return sums

    whole = run(size, program)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1500)
    assert Cut(20_011, size, Blocks()).num_pieces >= 4
    for sums in run(size, program):
        assert all(map(torch.equal, sums, whole[0]))


@pytest.mark.mpi
def test_pieces_travel_while_others_are_coded(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    """The sums are those of shared memory, bit for bit; who does not come is named."""
    assert ranks.mpi(3, programs("pieces.py")).count("is done") == 3
