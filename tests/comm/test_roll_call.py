"""Who is missing, found out by few questions: simulated among any number of ranks."""

from collections.abc import Callable, Sequence

import pytest

from phalanx.comm.roll_call import Heard, RollCall, decode

ASKED, ELSEWHERE = "all_reduce number 7", "barrier number 6"
ROUNDS = 40  # of a millisecond or so each, in half of the grace


def call_roll(
    size: int,
    is_waiting: Callable[[int], bool],
    *,
    asking: Callable[[int], bool] = lambda _: True,
    activity: Callable[[int], str] = lambda _: ASKED,
) -> tuple[dict[int, RollCall], dict[int, set[int]]]:
    """Return what each waiting rank has heard in the end, and which peers it has written to.

    asking: ranks that begin. A rank reads all its messages at a time, as in `FailureDetector`.
    """
    calls = {rank: RollCall(rank, size, ASKED) for rank in range(size) if is_waiting(rank)}
    inboxes: dict[int, list[tuple[int, Heard]]] = {rank: [] for rank in calls}
    peers: dict[int, set[int]] = {rank: set() for rank in calls}

    def send(call: RollCall, dests: Sequence[int]) -> None:
        peers[call.rank].update(dests)
        if dests:
            heard = dict(call.heard)
            for dest in calls.keys() & set(dests):
                inboxes[dest].append((call.rank, heard))

    for rank in filter(asking, calls):
        calls[rank].begin()
    for number in range(2 * ROUNDS):
        for rank, call in calls.items():
            arrived, inboxes[rank] = inboxes[rank], []
            for source, heard in arrived:
                if call.hear(heard, activity(rank), source):
                    send(call, [source])
            send(call, call.take_news())
            if number == ROUNDS and asking(rank) and call.is_first():
                send(call, call.missing([other for other in range(size) if other != rank]))
    return calls, peers


MISSING = {
    "one": lambda size: {size // 3},
    "the last": lambda size: {size - 1},
    "a node": lambda _: set(range(16, 32)),
    "every third": lambda size: set(range(0, size, 3)),
}


@pytest.mark.parametrize("size", [2, 3, 6, 64, 1000])
@pytest.mark.parametrize("which", MISSING)
def test_all_name_the_missing(size: int, which: str) -> None:
    if size == 1000 and which != "every third":
        pytest.skip("as of 64 ranks")
    missing = {rank for rank in MISSING[which](size) if rank < size}
    if size == 2:
        missing = {0}
    calls, peers = call_roll(size, lambda rank: rank not in missing)
    for rank, call in calls.items():
        assert set(call.missing(range(size))) == missing
        assert not call.elsewhere(range(size))
        most = 2 * (size - 1).bit_length()
        assert len(peers[rank]) <= most + (len(missing) if rank == min(calls) else 0)


@pytest.mark.parametrize("which", ["a node", "every third"])
def test_news_goes_around_the_missing_of_16384_ranks(which: str) -> None:
    """In half as many messages after each other as a rank has peers, or a few more."""
    size = 16_384
    missing = MISSING[which](size)
    news, heard, num_hops = {1}, {1}, 0
    while news:
        peers = {peer for rank in news for peer in RollCall(rank, size, ASKED).peers}
        news = peers - heard - missing
        heard |= news
        num_hops += bool(news)
    assert heard == set(range(size)) - missing
    assert num_hops <= 14 + 2
    assert len(RollCall(1, size, ASKED).peers) <= 2 * 14


def test_who_waits_elsewhere_is_named_with_that() -> None:
    calls, _ = call_roll(
        64,
        lambda rank: rank != 3,
        asking=lambda rank: rank != 40,
        activity=lambda rank: ELSEWHERE if rank == 40 else ASKED,
    )
    assert calls[0].missing(range(64)) == [3]
    assert calls[0].elsewhere(range(64)) == {40: ELSEWHERE}


def test_a_few_who_wait_find_each_other() -> None:
    """No two of them are peers."""
    waiting = {0, 7, 30, 1000}
    calls, _ = call_roll(1024, lambda rank: rank in waiting)
    for call in calls.values():
        assert set(call.missing(range(1024))) == set(range(1024)) - waiting


def test_of_few_ranks_each_asks_all() -> None:
    for size in range(2, 6):
        assert sorted(RollCall(0, size, ASKED).peers) == list(range(1, size))


def test_what_is_sent() -> None:
    call = RollCall(3, 8, ASKED)
    call.begin()
    call.hear({ASKED: 0b10}, ASKED)
    assert decode(call.encode()) == (ASKED, {ASKED: 0b1010})
