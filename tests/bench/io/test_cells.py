"""What is measured, and in which order."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from phalanx.bench.call_schedule import turns
from phalanx.bench.io.config import FORMATS, IoConfig
from phalanx.bench.io.rank_benchmark import cells, compute_times
from phalanx.records.io import READS


def test_each_way_once_and_none_that_cannot_be() -> None:
    config = IoConfig(
        readers=(0, 1, 2),
        depth=(1, 4),
        kinds=("threads", "processes"),
        against=("read", "read-kept", "torch", "torch-batched"),
    )
    planned = cells(config, 2, FORMATS)
    assert len(set(planned)) == len(planned)
    assert {cell.ranks for cell in planned} == {2}
    torch = [cell for cell in planned if cell.loader.startswith("torch")]
    assert {cell.format for cell in torch} == {"tar", "npy"}
    assert {cell.kind for cell in torch if cell.readers} == {"processes"}
    plain = [cell for cell in planned if cell.loader in READS]
    assert len(plain) == len(FORMATS) * 2 * 2  # a read has neither readers nor depth
    own = [cell for cell in planned if cell.loader == "phalanx"]
    # Without readers neither their kind nor a depth makes a difference.
    assert len(own) == len(FORMATS) * 2 * (1 + 2 * 2 * 2)
    counts = [len(compute_times(cell, config.workload)) for cell in (own[0], torch[0], plain[0])]
    assert counts == [2, 1, 1]


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_round_has_every_way_and_begins_with_another(number: int, runs: int) -> None:
    made = list(turns(range(number), runs + 1))
    assert Counter(made) == Counter((r, way) for r in range(runs + 1) for way in range(number))
    assert [r for r, _ in made] == sorted(r for r, _ in made)
    if number > 1:
        firsts = [made[r * number][1] for r in range(runs + 1)]
        assert all(a != b for a, b in pairwise(firsts))
