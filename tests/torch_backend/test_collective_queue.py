"""The order of a group's calls, without MPI."""

import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed import DistBackendError

from phalanx.comm.errors import WaitTimeoutError
from phalanx.torch_backend.collective_queue import CollectiveQueue, QueuedWork
from phalanx.torch_backend.work import CoalescedWork, to_seconds


def work(call: object, queue: CollectiveQueue) -> QueuedWork:
    made = QueuedWork(call, [torch.ones(1)], "a test", queue)  # type: ignore[arg-type]
    queue.submit(made)
    return made


def test_calls_run_in_the_order_of_submission() -> None:
    queue, ran = CollectiveQueue("test"), []
    gate = threading.Event()
    first = work(lambda: gate.wait(5), queue)
    works = [work(lambda n=n: ran.append(n), queue) for n in range(50)]
    assert not queue.run_inline(lambda: ran.append("too early"))
    assert not first.is_completed()
    gate.set()
    assert works[-1].wait()
    assert ran == list(range(50))
    assert queue.run_inline(lambda: ran.append("alone"))
    assert ran[-1] == "alone"
    assert queue.close(5)


def test_nothing_runs_while_another_thread_is_in_a_call() -> None:
    queue, inside, gate = CollectiveQueue("test"), threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        gate.wait(5)

    thread = threading.Thread(target=queue.run_inline, args=(hold,))
    thread.start()
    inside.wait(5)
    assert not queue.run_inline(lambda: None)
    gate.set()
    thread.join()
    assert queue.run_inline(lambda: None)


def test_errors_are_raised_where_the_work_is_awaited() -> None:
    queue = CollectiveQueue("test")

    def late() -> None:
        raise WaitTimeoutError("rank 0 waited 1 s in all_reduce number 3 of group 0 for rank 1")

    failed = work(late, queue)
    with pytest.raises(DistBackendError, match="number 3 of group 0 for rank 1"):
        failed.wait()
    assert not failed.is_success()
    assert isinstance(failed.exception(), DistBackendError)
    with pytest.raises(RuntimeError, match="number 3"):
        failed.get_future().wait()
    fine = work(lambda: None, queue)
    assert fine.get_future().wait()[0].item() == 1
    with pytest.raises(DistBackendError):
        CoalescedWork([fine, failed], [], "two").wait()
    assert queue.close(5)


def test_a_wait_ends_after_its_timeout_and_the_call_goes_on() -> None:
    queue, gate = CollectiveQueue("test"), threading.Event()
    slow = work(lambda: gate.wait(5), queue)
    with pytest.raises(DistBackendError, match=r"a test was not complete after 0\.05 s"):
        slow.wait(timedelta(seconds=0.05))
    gate.set()
    assert slow.wait()
    assert queue.close(5)


def test_a_callback_may_wait_for_what_comes_after_it() -> None:
    queue, ran, gate = CollectiveQueue("test"), [], threading.Event()
    first = work(lambda: gate.wait(5), queue)
    second = work(lambda: ran.append("second"), queue)

    def callback(_: object) -> str:
        work(lambda: ran.append("third"), queue).wait()
        return "over"

    over = first.get_future().then(callback)
    gate.set()
    assert over.wait() == "over"
    assert second.wait()
    assert ran == ["second", "third"]
    assert queue.close(5)


def test_a_callback_that_raises_fails_its_own_future_alone() -> None:
    queue, gate = CollectiveQueue("test"), threading.Event()
    first = work(lambda: gate.wait(5), queue)

    def callback(_: object) -> None:
        raise KeyError("of the callback")

    failed = first.get_future().then(callback)
    second = work(lambda: None, queue)
    gate.set()
    with pytest.raises(RuntimeError, match="KeyError: 'of the callback'"):
        failed.wait()
    assert first.get_future().wait()[0].item() == 1
    assert second.wait()
    assert queue.close(5)


def test_futures_of_failed_works_fail_in_cpp_too() -> None:
    """There an exception that Python sets is a value: DDP's reducer took it for tensors."""
    queue = CollectiveQueue("test")

    def late() -> None:
        raise WaitTimeoutError("rank 0 waited 1 s for rank 1")

    failed = work(late, queue)
    with pytest.raises(RuntimeError, match="Timed out waiting: rank 0 waited 1 s for rank 1"):
        torch.futures.wait_all([failed.get_future()])
    with pytest.raises(RuntimeError, match="rank 0 waited 1 s"):
        CoalescedWork([failed], [], "one").get_future().wait()
    assert queue.close(5)


def test_close_remembers_what_did_not_end() -> None:
    queue, gate = CollectiveQueue("test"), threading.Event()
    slow = work(lambda: gate.wait(30), queue)
    assert not queue.close(0.05)
    assert not queue.close(0.05)
    assert queue.unfinished() == [slow]
    with pytest.raises(RuntimeError, match="destroyed"):
        work(lambda: None, queue)
    gate.set()
    assert queue.close(5)
    assert queue.unfinished() == []
    assert not queue.run_inline(lambda: None)


def test_close_waits_for_a_call_on_another_thread() -> None:
    queue, inside, gate = CollectiveQueue("test"), threading.Event(), threading.Event()
    thread = threading.Thread(target=queue.run_inline, args=(lambda: (inside.set(), gate.wait(5)),))
    thread.start()
    inside.wait(5)
    assert not queue.close(0.05)
    gate.set()
    assert queue.close(5)
    thread.join()


def test_a_group_may_be_closed_by_a_callback() -> None:
    queue, ended = CollectiveQueue("test"), []
    first = work(lambda: None, queue)
    second = work(lambda: None, queue)
    first.get_future().then(lambda _: ended.append(queue.close(5))).wait()
    assert ended == [True]
    assert second.is_completed()


def test_results_are_given_back_when_nobody_holds_the_work() -> None:
    queue = CollectiveQueue("test")
    tensor = torch.ones(1000)
    made = QueuedWork(lambda: tensor.sum(), [], "a test", queue)
    queue.submit(made)
    made.wait()
    assert made._call is None
    assert queue.close(5)


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [(None, None), (timedelta(0), None), (timedelta(milliseconds=-1), None)],
)
def test_no_timeout_of_its_own(timeout: timedelta | None, expected: float | None) -> None:
    assert to_seconds(timeout) is expected
    assert to_seconds(timedelta(seconds=2)) == 2
