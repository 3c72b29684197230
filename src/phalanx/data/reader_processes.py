"""Readers that are processes: for work that holds the interpreter's lock.

They are started by forkserver, so none is a copy of a process that has initialised MPI, and end
when their pipe does: with `close`, and with the process that started them, however it ended.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import count, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from types import ModuleType
from typing import Any, Generic, TypeVar

from phalanx.data.slots import Filled, Reader, Writer
from phalanx.errors import RunFailedError

Asked = TypeVar("Asked")
Got = TypeVar("Got")

LEAVE_S = 5.0
"""Given to a reader to finish what it is at before it is killed."""


class ReaderProcesses(Generic[Asked, Got]):
    """See `prefetch.Readers`. `fetch` must be importable, as pickle has it."""

    def __init__(self, fetch: Callable[[Asked], Got], readers: int) -> None:
        self._readers = [_Reader(fetch, number) for number in range(readers)]
        self._numbers = count()
        self._done: dict[int, Any] = {}

    def results(self, work: Iterable[Asked], *, depth: int, timeout_s: float) -> Iterator[Got]:
        items = iter(work)
        asked = [self._ask(item) for item in islice(items, depth)]
        first = asked[0] if asked else 0
        try:
            while asked:
                got = self._await(asked.pop(0), first, timeout_s)
                asked += [self._ask(item) for item in islice(items, 1)]
                if isinstance(got, _Failed):
                    raise got.error
                yield got
                del got  # it is the taker's now
        finally:
            self._done.clear()

    def close(self) -> None:
        for reader in self._readers:
            reader.leave()
        for reader in self._readers:
            reader.close()

    def _ask(self, item: Asked) -> int:
        number = next(self._numbers)
        min(self._readers, key=lambda reader: reader.num_asked).ask(number, item)
        return number

    def _await(self, number: int, first: int, timeout_s: float) -> Any:
        """The result of `number`. Those before `first` are of an earlier pass: not wanted."""
        self._look(0.0, first)
        while number not in self._done:
            if not self._look(timeout_s, first):
                raise RunFailedError(f"no reader gave anything for {timeout_s:g} s")
        return self._done.pop(number)

    def _look(self, timeout_s: float, first: int) -> bool:
        """Take what has come, waiting at most so long for something.

        Raises: RunFailedError when a reader has died.
        """
        ready = wait([part for r in self._readers for part in (r.pipe, r.sentinel)], timeout_s)
        for reader in self._readers:
            if reader.pipe in ready:
                with contextlib.suppress(EOFError, ConnectionError):  # the sentinel says more
                    answered, got = reader.take()
                    if answered >= first:
                        self._done[answered] = got
            if reader.sentinel in ready:
                raise RunFailedError(reader.obituary())
        return bool(ready)


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


class _Reader:
    """One process, as its parent sees it. It answers in the order in which it was asked."""

    def __init__(self, fetch: Callable[[Any], Any], number: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        text = pickle.dumps(fetch, protocol=5)
        self._process = context.Process(
            target=_read, args=(theirs, text), name=f"reader {number}", daemon=True
        )
        with nullcontext() if b"__main__" in text else _no_main():
            self._process.start()
        theirs.close()
        self.sentinel = self._process.sentinel
        self._slots = Reader()
        self.num_asked = 0

    def ask(self, number: int, item: object) -> None:
        unused, self._slots.unused[:] = [*self._slots.unused], []
        self._send((number, item, unused))
        self.num_asked += 1

    def take(self) -> tuple[int, Any]:
        number, filled, is_new, has_failed = pickle.loads(self.pipe.recv_bytes())
        self.num_asked -= 1
        if is_new:
            self._slots.add(filled.slot, recv_handle(self.pipe))
        got = self._slots.take(filled)
        return number, _Failed(got) if has_failed else got

    def obituary(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"signal {signal.Signals(-code).name}"
        return f"{self._process.name}, process {self._process.pid}, has ended by itself ({how})"

    def leave(self) -> None:
        self._send(None)

    def close(self) -> None:
        self._process.join(LEAVE_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self.pipe.close()
        self._slots.close()
        self._process.close()

    def _send(self, message: object) -> None:
        # A reader that has died is noticed by its sentinel, which says how.
        with contextlib.suppress(ConnectionError):
            self.pipe.send_bytes(pickle.dumps(message, protocol=5))


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Meanwhile the program that runs has no name: a process that is started would import it
    first, and all that it imports, which costs seconds where that is PyTorch."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _read(pipe: Connection, text: bytes) -> None:
    """Main loop of a reader process; ends when its parent sends None or is gone."""
    fetch = pickle.loads(text)  # of the process that has started this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    slots = Writer()
    with contextlib.suppress(EOFError, ConnectionError):
        while (message := pickle.loads(pipe.recv_bytes())) is not None:
            number, item, unused = message
            slots.free(unused)
            has_failed, got = _fetched(fetch, item)
            filled, descriptor = slots.put(got)
            del got
            _answer(pipe, number, filled, descriptor, has_failed)


def _answer(
    pipe: Connection, number: int, filled: Filled, descriptor: int | None, has_failed: bool
) -> None:
    answer = (number, filled, descriptor is not None, has_failed)
    pipe.send_bytes(pickle.dumps(answer, protocol=5))
    if descriptor is not None:
        send_handle(pipe, descriptor, 0)


def _fetched(fetch: Callable[[Any], Any], item: object) -> tuple[bool, Any]:
    """Return (has_failed, result or error)."""
    try:
        return False, fetch(item)
    except Exception as error:  # noqa: BLE001  # raised where the result is due
        error.add_note("in a reader process:\n" + traceback.format_exc())
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001  # one that cannot be handed on
            return True, RuntimeError("".join(traceback.format_exception(error)))
        return True, error
