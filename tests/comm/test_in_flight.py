"""Messages that were given up, on several threads at the same time."""

import threading
from collections.abc import Sequence

from phalanx.comm.in_flight import InFlight


class Slow:
    """MPI is done with it the fifth time that it is asked, and asked by one thread at a time."""

    is_done = False

    def __init__(self) -> None:
        self.left, self.guard, self.raced = 5, threading.Lock(), False

    def peers(self) -> Sequence[int]:
        return ()

    def advance(self) -> bool:
        return False

    def cancel(self) -> None:
        pass

    def settle(self) -> bool:
        if not self.guard.acquire(blocking=False):
            self.raced = True
            return False
        self.left -= 1
        threading.Event().wait(1e-5)
        self.guard.release()
        return self.left <= 0


def test_none_is_lost_and_none_is_asked_by_two_threads() -> None:
    in_flight = InFlight()
    messages = [Slow() for _ in range(400)]

    def abandon(some: Sequence[Slow]) -> None:
        for message in some:
            in_flight.abandon(message)
            in_flight.sweep()

    threads = [threading.Thread(target=abandon, args=(messages[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(5):
        in_flight.sweep()
    assert not any(message.raced for message in messages)
    assert all(message.left <= 0 for message in messages)  # else its buffer was freed too early
