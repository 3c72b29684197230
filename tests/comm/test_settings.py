"""Ranks whose surroundings differ: one protocol for all, or every rank is told."""

from dataclasses import replace

import pytest

from phalanx.comm.link import Link
from phalanx.comm.settings import RankSettings, agree, cores_of, exchange, read_settings
from phalanx.errors import UserError
from tests.conftest import Programs, Ranks, done


def read(environ: dict[str, str], **given: object) -> RankSettings:
    asked = {"link": None, "check": None, "library": "Open MPI", "reported_gpu_aware": None}
    return read_settings(environ, **{**asked, **given})


OWN = read({})


def exchanged(ranks: list[RankSettings]) -> list[RankSettings]:
    """What each rank gets, by way of the texts that the ranks send."""
    texts: list[str] = []
    for own in ranks:
        exchange(own, lambda text: [texts.append(text) or text])
    return exchange(ranks[0], lambda _: texts)


def test_what_is_sent_arrives() -> None:
    ranks = [OWN, replace(OWN, affinity=[5], gpu_aware=True), read({"PHALANX_CHECK": "1"})]
    assert exchanged(ranks) == ranks


def test_every_rank_derives_the_same() -> None:
    ranks = [
        replace(OWN, affinity=[0], cache_bytes=2**25, gpu_aware=True),
        replace(OWN, affinity=[1], cache_bytes=2**29, check=True),
    ]
    settings = agree(ranks)
    assert settings.cache_bytes == 2**25
    assert settings.check
    assert not settings.is_gpu_aware
    assert settings.all_reduce == "auto"
    assert cores_of(ranks) == 2


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            read({"PHALANX_ALL_REDUCE": "ring"}),
            "PHALANX_ALL_REDUCE differs among the ranks: not set on ranks 0, 2, 'ring' on rank 1; "
            "set the same value on all ranks",
        ),
        (
            read({"PHALANX_LINK": "1ms"}),
            "PHALANX_LINK differs among the ranks: not set on ranks 0, 2, '1ms' on rank 1",
        ),
        (
            read({}, link=Link(latency_s=1.0)),
            "PHALANX_LINK differs among the ranks: not set on ranks 0, 2, "
            "'Link(bandwidth_bytes_per_s=None, latency_s=1.0)' on rank 1",
        ),
        (
            read({"PHALANX_GPU_AWARE": "perhaps"}),
            "on rank 1 PHALANX_GPU_AWARE is 'perhaps'; it must be 0 or 1",
        ),
    ],
)
def test_disagreement_is_told_with_the_values_of_the_ranks(own: RankSettings, said: str) -> None:
    with pytest.raises(UserError) as told:
        agree([OWN, own, OWN])
    assert said in str(told.value)


def test_hosts_are_named_where_there_are_several() -> None:
    ring = read({"PHALANX_ALL_REDUCE": "ring"})
    ranks = [replace(OWN, host="n0"), replace(OWN, host="n0"), replace(ring, host="n1")]
    with pytest.raises(
        UserError, match=r"not set on ranks 0 \(n0\), 1 \(n0\), 'ring' on rank 2 \(n1\);"
    ):
        agree(ranks)
    with pytest.raises(UserError, match=r"2\.0 on rank 1 \(n1\)$"):
        exchange(OWN, lambda text: [text, '{"version": "2.0", "host": "n1"}'])


def test_a_word_that_means_nothing() -> None:
    with pytest.raises(UserError, match="PHALANX_ALL_REDUCE is 'slow'; use one of auto, shared"):
        agree([read({"PHALANX_ALL_REDUCE": "slow"})])


def test_other_versions() -> None:
    with pytest.raises(
        UserError, match=r"different versions of Phalanx: 0\.0\.1 on ranks 0, 1, 9\.9 on rank 2$"
    ):
        exchanged([replace(OWN, version="0.0.1")] * 2 + [replace(OWN, version="9.9")])


def test_a_version_with_other_settings() -> None:
    """One that sends more, or less, than this one knows."""
    with pytest.raises(UserError, match=r"different versions of Phalanx: .* 2\.0 on rank 1"):
        exchange(OWN, lambda text: [text, '{"version": "2.0", "weather": "fine"}'])


def test_kernels_of_other_builds() -> None:
    with pytest.raises(UserError, match=r"1 on rank 0, 3 on rank 1, none on rank 2"):
        exchanged([replace(OWN, protocol=number) for number in (1, 3, None)])


def test_many_ranks_are_counted() -> None:
    others = [replace(OWN, all_reduce="ring")] * 20
    with pytest.raises(UserError, match=r"'ring' on ranks 1, 2, 3, 4, 5, 6, 7, 8 and 12 others;"):
        agree([OWN, *others])


@pytest.mark.mpi
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_with_other_surroundings(ranks: Ranks, programs: Programs, count: int) -> None:
    words = ("affinity", "policies", "environment", "versions")
    output = ranks.mpi(count, programs("uneven.py"), *words)
    last = count - 1
    others = ", ".join(str(rank) for rank in range(last))
    without = f"not set on rank{'s' if last > 1 else ''} {others}"
    for said in (
        f"PHALANX_LINK differs among the ranks: {without}, '1Gbit/s,1ms' on rank {last}",
        f"PHALANX_LINK differs among the ranks: {without}, 'fast' on rank {last}",
        f"PHALANX_ALL_REDUCE differs among the ranks: {without}, 'ring' on rank {last}",
        f"PHALANX_ALL_REDUCE differs among the ranks: {without}, 'slow' on rank {last}",
        f"on rank {last} PHALANX_GPU_AWARE is 'perhaps'; it must be 0 or 1",
        "the ranks run different versions of Phalanx: 0.0.1 on rank 0",
    ):
        assert output.count(said) == count, f"{said}\n{output}"
    assert done(output, count)
    said = (
        f"cannot share memory: the C kernels are missing on rank {last} of the node. They exchange"
    )
    assert output.count(said) == 1, output
