"""What meshes cost, against the sums of the papers. On real ranks: test_on_mesh.py."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.models.gpt import GPT
from phalanx.models.options import DataShape
from phalanx.parallel.costs import (
    ParameterSpec,
    assign_owners,
    replica_traffic,
    shard_traffic,
    stored_bytes,
    tensor_parallel_traffic,
    zero_one_traffic,
)
from phalanx.parallel.mesh import AXES, Mesh

ALONE = dict.fromkeys(AXES, 0)
shapes = st.tuples(st.integers(1, 40), st.integers(1, 40))
units = st.lists(
    st.lists(st.builds(ParameterSpec, shape=shapes), min_size=1), min_size=1, max_size=4
)
ranks = st.integers(2, 8)


def values_of(units: list[list[ParameterSpec]]) -> int:
    return sum(parameter.values(1) for unit in units for parameter in unit)


def places(mesh: Mesh) -> list[dict[str, int]]:
    return [mesh.coordinates(rank) for rank in range(mesh.size)]


@settings(deadline=None)
@given(units, ranks)
def test_replicas_sum_by_two_rounds(units: list[list[ParameterSpec]], size: int) -> None:
    """Over all ranks 2(p−1) times the gradients, whatever the shares."""
    mesh = Mesh(dp=size)
    moves = [replica_traffic(units, mesh, place, 4) for place in places(mesh)]
    whole = 2 * (size - 1) * 4 * values_of(units)
    assert sum(move.sent_bytes for move in moves) == whole
    assert sum(move.received_bytes for move in moves) == whole


@settings(deadline=None)
@given(units, ranks)
def test_stage_three_moves_half_more_than_stage_two(
    units: list[list[ParameterSpec]], size: int
) -> None:
    mesh = Mesh(shard=size)
    two, three = (
        shard_traffic(units, mesh, ALONE, 4, gathers=gathers).sent_bytes for gathers in (1, 2)
    )
    assert three * 2 == two * 3
    padding = sum(p.shape[1] * (size - 1) for unit in units for p in unit)
    exact = 2 * (size - 1) * 4 * values_of(units) / size
    assert exact <= two <= exact + 2 * (size - 1) * 4 * padding / size


@settings(deadline=None)
@given(units, ranks)
def test_shards_keep_a_part_of_everything(units: list[list[ParameterSpec]], size: int) -> None:
    whole = stored_bytes(units, Mesh(), ALONE, 4, 2)
    mesh = Mesh(shard=size)
    parts = [stored_bytes(units, mesh, place, 4, 2) for place in places(mesh)]
    assert whole == 16 * values_of(units)
    assert whole <= sum(parts) and whole / size <= max(parts) <= whole
    owned = [
        p.local_values(1, size, shard) for unit in units for p in unit for shard in range(size)
    ]
    assert sum(owned) == values_of(units)
    assert stored_bytes(units, Mesh(dp=size), ALONE, 4, 2) == whole


def test_split_layers_and_shards_together() -> None:
    split = ParameterSpec(shape=(12, 10), split=0)
    across = ParameterSpec(shape=(12, 10), split=1)
    assert (split.values(2), across.values(2)) == (60, 60)
    assert split.shard_values(2, 4) == 2 * 10  # six rows among four: two each, filled up
    assert across.shard_values(2, 4) == 3 * 5
    assert ParameterSpec(shape=(12,)).shard_values(2, 5) == 3


def test_a_block_of_the_gpt_sums_four_times() -> None:
    mesh, rows = Mesh(tp=2), [3 * 8]
    gpt = GPT(width=16, layers=2, heads=2, shape=DataShape(inputs=(8,)))
    layers = [name for name, _ in gpt.named_children()]
    plain, sequence = (gpt.split_traffic(sequence_parallel=is_split) for is_split in (False, True))
    moved = tensor_parallel_traffic(layers, rows, plain, mesh, ALONE, 4)
    assert moved.sent_bytes == 4 * 2 * (2 * (2 - 1) / 2 * 4 * 3 * 8 * 16)
    split = tensor_parallel_traffic(layers, rows, sequence, mesh, ALONE, 4)
    ends = 2 * 4 * 3 * 8 * 16 / 2  # one all-gather at each
    norms = 5 * 2 * (4 * 16)  # weight and bias of five
    assert split.sent_bytes == moved.sent_bytes + ends + norms
    assert tensor_parallel_traffic(layers, rows, plain, Mesh(dp=2), ALONE, 4)[0] == 0


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), ranks)
def test_state_is_dealt_out_evenly(sizes: list[int], size: int) -> None:
    owners = assign_owners(sizes, size)
    held = [sum(n for n, o in zip(sizes, owners, strict=True) if o == r) for r in range(size)]
    assert sum(held) == sum(sizes)
    assert max(held) <= sum(sizes) / size + max(sizes)


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), ranks)
def test_stage_one_moves_an_all_reduce_and_every_parameter(sizes: list[int], size: int) -> None:
    moves = [zero_one_traffic(sizes, rank, size, 4) for rank in range(size)]
    whole = 3 * (size - 1) * 4 * sum(sizes)
    assert sum(move.sent_bytes for move in moves) == whole
    assert sum(move.received_bytes for move in moves) == whole
