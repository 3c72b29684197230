"""Pool of reader processes, for work that holds the GIL.

They are started by forkserver, so none is a fork of a process that has initialised MPI. A reader
exits when its pipe closes: on `close`, or when the parent process ends for any reason.
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

from phalanx.data.reading.shm_slots import FilledSlot, SlotReader, SlotWriter
from phalanx.errors import RunFailedError
from phalanx.jobs.worker_environment import worker_environment

Item = TypeVar("Item")
Result = TypeVar("Result")

SHUTDOWN_S = 5.0
"""Time for a reader to finish its current item before it is killed."""


class ReaderProcesses(Generic[Item, Result]):
    """Pool of processes, see `prefetch.Readers`. `fetch` must be picklable."""

    def __init__(self, fetch: Callable[[Item], Result], readers: int) -> None:
        self._readers = [_ReaderProcess(fetch, number) for number in range(readers)]
        self._numbers = count()
        self._results: dict[int, Any] = {}

    def results(self, work: Iterable[Item], *, depth: int, timeout_s: float) -> Iterator[Result]:
        iterator = iter(work)
        pending = [self._submit(item) for item in islice(iterator, depth)]
        first = pending[0] if pending else 0
        try:
            while pending:
                result = self._await(pending.pop(0), first, timeout_s)
                pending += [self._submit(item) for item in islice(iterator, 1)]
                if isinstance(result, _Failure):
                    raise result.error
                yield result
                del result  # the caller owns it now
        finally:
            self._results.clear()

    def close(self) -> None:
        for reader in self._readers:
            reader.request_stop()
        for reader in self._readers:
            reader.close()

    def _submit(self, item: Item) -> int:
        number = next(self._numbers)
        min(self._readers, key=lambda reader: reader.num_pending).submit(number, item)
        return number

    def _await(self, number: int, first: int, timeout_s: float) -> Any:
        """Return the result of item `number`; drop results before `first`, of an earlier pass."""
        self._poll(0.0, first)
        while number not in self._results:
            if not self._poll(timeout_s, first):
                raise RunFailedError(f"no reader gave anything for {timeout_s:g} s")
        return self._results.pop(number)

    def _poll(self, timeout_s: float, first: int) -> bool:
        """Receive all results that have arrived, waiting at most `timeout_s` for the first.

        Raises: RunFailedError when a reader has died.
        """
        ready = wait([end for r in self._readers for end in (r.pipe, r.sentinel)], timeout_s)
        for reader in self._readers:
            if reader.pipe in ready:
                with contextlib.suppress(EOFError, ConnectionError):  # the sentinel says more
                    answered_number, result = reader.receive()
                    if answered_number >= first:
                        self._results[answered_number] = result
            if reader.sentinel in ready:
                raise RunFailedError(reader.describe_exit())
        return bool(ready)


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


class _ReaderProcess:
    """Parent's handle of one reader process, which returns results in order of submission."""

    def __init__(self, fetch: Callable[[Any], Any], number: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        text = pickle.dumps(fetch, protocol=5)
        self._process = context.Process(
            target=_serve, args=(theirs, text), name=f"reader {number}", daemon=True
        )
        with worker_environment(), nullcontext() if b"__main__" in text else _hidden_main():
            self._process.start()
        theirs.close()
        self.sentinel = self._process.sentinel
        self._slots = SlotReader()
        self.num_pending = 0

    def submit(self, number: int, item: object) -> None:
        unused, self._slots.unused[:] = [*self._slots.unused], []
        self._send((number, item, unused))
        self.num_pending += 1

    def receive(self) -> tuple[int, Any]:
        number, filled, is_new, has_failed = pickle.loads(self.pipe.recv_bytes())
        self.num_pending -= 1
        if is_new:
            self._slots.add(filled.slot, recv_handle(self.pipe))
        result = self._slots.take(filled)
        return number, _Failure(result) if has_failed else result

    def describe_exit(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"signal {signal.Signals(-code).name}"
        return f"{self._process.name}, process {self._process.pid}, has ended by itself ({how})"

    def request_stop(self) -> None:
        self._send(None)

    def close(self) -> None:
        self._process.join(SHUTDOWN_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self.pipe.close()
        self._slots.close()
        self._process.close()

    def _send(self, message: object) -> None:
        # A dead reader is reported through its sentinel, with its exit code.
        with contextlib.suppress(ConnectionError):
            self.pipe.send_bytes(pickle.dumps(message, protocol=5))


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide `__main__` meanwhile: a started process would import it and all that it imports, which
    takes seconds where that is PyTorch."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(pipe: Connection, text: bytes) -> None:
    """Main loop of a reader process; ends when its parent sends None or is gone."""
    fetch = pickle.loads(text)  # of the process that has started this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the parent
    slots = SlotWriter()
    with contextlib.suppress(EOFError, ConnectionError):
        while (message := pickle.loads(pipe.recv_bytes())) is not None:
            number, item, unused = message
            slots.free(unused)
            has_failed, result = _try_fetch(fetch, item)
            filled, descriptor = slots.put(result)
            del result
            _send_result(pipe, number, filled, descriptor, has_failed)


def _send_result(
    pipe: Connection, number: int, filled: FilledSlot, descriptor: int | None, has_failed: bool
) -> None:
    answer = (number, filled, descriptor is not None, has_failed)
    pipe.send_bytes(pickle.dumps(answer, protocol=5))
    if descriptor is not None:
        send_handle(pipe, descriptor, 0)


def _try_fetch(fetch: Callable[[Any], Any], item: object) -> tuple[bool, Any]:
    """Return (has_failed, result or error)."""
    try:
        return False, fetch(item)
    except Exception as error:  # noqa: BLE001  # raised where the result is due
        error.add_note("in a reader process:\n" + traceback.format_exc())
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001  # not picklable
            return True, RuntimeError("".join(traceback.format_exception(error)))
        return True, error
