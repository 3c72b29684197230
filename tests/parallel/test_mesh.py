"""The grid of ranks: the last axis changes fastest."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.parallel.mesh import (
    AXES,
    Mesh,
    check_mesh,
    crossing_axes,
    parse_mesh,
    placement_notice,
)

sizes = st.integers(1, 4)
meshes = st.builds(Mesh, pp=sizes, dp=sizes, shard=sizes, tp=sizes)


@settings(deadline=None)
@given(meshes)
def test_places_and_ranks(mesh: Mesh) -> None:
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    assert [tuple(place.values()) for place in places] == list(product(*map(range, mesh.shape)))
    for place in places:
        assert all(0 <= place[axis] < getattr(mesh, axis) for axis in AXES)


@settings(deadline=None)
@given(meshes)
def test_every_data_rank_has_as_many_ranks(mesh: Mesh) -> None:
    seen = [mesh.data_rank(rank) for rank in range(mesh.size)]
    assert set(seen) == set(range(mesh.data_size))
    assert all(seen.count(part) == mesh.pp * mesh.tp for part in range(mesh.data_size))
    places = map(mesh.coordinates, range(mesh.size))
    found = {(place["dp"], place["shard"], part) for place, part in zip(places, seen, strict=True)}
    assert len(found) == mesh.data_size, "who shares a model sees the same samples"


@settings(deadline=None)
@given(meshes)
def test_what_is_written_is_read(mesh: Mesh) -> None:
    assert parse_mesh(str(mesh)) == mesh


@settings(deadline=None)
@given(meshes, st.integers(1, 8))
def test_the_last_axes_stay_on_a_node(mesh: Mesh, ranks_per_node: int) -> None:
    crossing = crossing_axes(mesh, ranks_per_node)
    if ranks_per_node % mesh.tp == 0:
        assert "tp" not in crossing
    if ranks_per_node >= mesh.size:
        assert crossing == ()
    assert all(getattr(mesh, axis) > 1 for axis in crossing)
    notice = placement_notice(mesh, ranks_per_node)
    assert (notice == "") == (not crossing)
    assert ("faster on one node" in notice) == ("tp" in crossing)


def test_the_notice_names_the_numbers() -> None:
    assert placement_notice(Mesh(dp=2, tp=2), 2) == "2 ranks per node: dp between nodes"
    notice = placement_notice(Mesh(tp=4), 2)
    assert "tp=4 communicates" in notice and "use tp=2" in notice


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dp=2,xx=2", "'xx=2' is not an axis"),
        ("dp=0", "'dp=0' is not an axis"),
        ("dp", "'dp' is not an axis"),
        ("dp=2,dp=2", "names dp twice"),
    ],
)
def test_what_is_no_mesh(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_mesh(text)


def test_axes_multiply_up() -> None:
    with pytest.raises(UserError, match=r"tp\(3\) = 12, but there are 8 ranks: use --ranks 12"):
        check_mesh(Mesh(dp=2, pp=2, tp=3), 8)
