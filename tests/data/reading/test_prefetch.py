"""Results in order, in bounded memory, made ahead; errors where they are due; nothing left."""

import os
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.reading.prefetch import ReaderKind, ReaderProcesses, Readers, prefetched
from phalanx.errors import RunFailedError
from tests.data.reading import fetchers

KINDS: tuple[tuple[ReaderKind, int], ...] = (("threads", 0), ("threads", 2), ("processes", 2))
by_kind = pytest.mark.parametrize(("kind", "readers"), KINDS)


@by_kind
def test_results_come_in_order_and_stay_what_they_are(kind: ReaderKind, readers: int) -> None:
    kept = list(prefetched(fetchers.squares, range(12), readers=readers, depth=3, kind=kind))
    assert [set(result["square"].tolist()) for result in kept] == [{n * n} for n in range(12)]
    assert all(result["none"].shape == (0, 3) for result in kept)
    grown = prefetched(fetchers.growing, range(6), readers=readers, depth=2, kind=kind)
    for number, result in enumerate(grown):  # one at a time: the memory of others is used again
        assert len(result) == 1 + 1000 * number and set(result.tolist()) == {number}
        result[:] = -1  # it is the taker's


@by_kind
def test_nothing_to_do(kind: ReaderKind, readers: int) -> None:
    assert list(prefetched(fetchers.squares, [], readers=readers, depth=3, kind=kind)) == []


@by_kind
def test_an_error_is_raised_where_its_result_is_due(kind: ReaderKind, readers: int) -> None:
    results = prefetched(fetchers.broken_at_three, range(9), readers=readers, depth=6, kind=kind)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three is broken"):
        next(results)
    assert list(results) == []


def test_an_error_that_cannot_be_handed_on_is_told_in_words() -> None:
    with pytest.raises(RuntimeError, match="1 and 2"):
        list(prefetched(fetchers.raises_unpicklable, [1], readers=1, depth=1, kind="processes"))


@given(
    items=st.integers(0, 12), readers=st.integers(0, 3), depth=st.integers(1, 5)
)  # fmt: skip
def test_no_more_than_the_depth_is_made_or_waits(items: int, readers: int, depth: int) -> None:
    lock, out, most = threading.Lock(), 0, 0

    def fetch(number: int) -> int:
        nonlocal out, most
        with lock:
            out += 1
            most = max(most, out)
        return number

    taken = []
    for number in prefetched(fetch, range(items), readers=readers, depth=depth):
        with lock:
            out -= 1
        taken.append(number)
    assert taken == list(range(items))
    assert most <= depth + 1  # and the one that has just been handed over


def test_readers_work_while_the_taker_is_busy() -> None:
    """Item 3 is begun while the first one is in the taker's hands."""
    begun = threading.Event()

    def fetch(number: int) -> int:
        if number == 3:
            begun.set()
        return number

    results = prefetched(fetch, range(6), readers=1, depth=3)
    assert next(results) == 0
    assert begun.wait(30)
    results.close()  # type: ignore[attr-defined]


def test_readers_work_side_by_side() -> None:
    both = threading.Barrier(2)
    meet = prefetched(lambda _: both.wait(30), range(2), readers=2, depth=2)
    assert sorted(meet) == [0, 1]


def test_a_reader_that_is_killed_is_noticed() -> None:
    results = prefetched(fetchers.killed_at_three, range(50), readers=2, depth=4, kind="processes")
    began = time.monotonic()
    with pytest.raises(RunFailedError, match=r"a reader, process \d+, .* \(signal SIGKILL\)"):
        for _ in results:
            pass
    assert time.monotonic() - began < 60  # and not after the timeout of five minutes


def test_a_reader_killed_between_results_is_noticed_by_the_next_item() -> None:
    """The pool knows of the death before the taker asks again: the item that is submitted then
    raised concurrent.futures' own error."""
    readers = Readers(fetchers.killed_at_three, 1, "processes")
    results = readers.results(range(50), depth=4, timeout_s=60)
    assert next(results) == 0
    assert isinstance(readers._pool, ReaderProcesses)
    while not readers._pool._broken:
        time.sleep(0.01)
    with pytest.raises(RunFailedError, match=r"a reader, process \d+, .* \(signal SIGKILL\)"):
        for _ in results:
            pass
    readers.close()


def test_a_reader_that_gives_nothing_is_given_up() -> None:
    slow = prefetched(fetchers.asleep, [1], readers=1, depth=1, kind="processes", timeout_s=0.3)
    with (
        pytest.MonkeyPatch.context() as patched,
        pytest.raises(RunFailedError, match=r"for 0\.3 s"),
    ):
        patched.setattr("phalanx.data.reading.prefetch.SHUTDOWN_S", 0.1)
        next(slow)
    assert not living()


def living() -> list[psutil.Process]:
    """Readers: children of the forkserver, which stays."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and "forkserver" in " ".join(process.cmdline())
        and process.ppid() != os.getpid()
    ]  # fmt: skip


def test_nothing_is_left_when_the_taker_stops_early(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    results = prefetched(
        fetchers.leaves_a_note, [str(tmp_path)] * 50, readers=2, depth=4, kind="processes"
    )
    process = next(results)
    assert psutil.pid_exists(process)
    results.close()  # type: ignore[attr-defined]
    assert not living()
    assert {int(path.name) for path in tmp_path.iterdir()} >= {process}
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "phalanx" in name}


@by_kind
def test_readers_serve_one_pass_after_another(kind: ReaderKind, readers: int) -> None:
    """Also after one that was given up."""
    pool = Readers(fetchers.broken_at_three, readers, kind)
    given_up = pool.results(range(3), depth=3, timeout_s=60)
    assert next(given_up) == 0
    given_up.close()  # type: ignore[attr-defined]
    for _ in range(2):
        assert list(pool.results([7, 8, 9], depth=2, timeout_s=60)) == [7, 8, 9]
    pool.close()
