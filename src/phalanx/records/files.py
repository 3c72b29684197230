"""Reading and writing result folders: whole files by rename, event files by appending lines."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from phalanx.errors import UserError, print_note
from phalanx.records.collectives import Bench
from phalanx.records.events import Event, NoticeEvent
from phalanx.records.io import IoBench
from phalanx.records.plan import Plan
from phalanx.records.regular_file import open_regular, read_regular, readable
from phalanx.records.schema import SCHEMA_VERSION, Failure, JobRecord, Run, Study

FLUSH_INTERVAL_S = 0.5
RECORDS_END = "records end here: "
"""Begin of the notice of a rank whose disk has taken no more."""
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for damaged bytes."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Errors of a disk that takes no more: records end there, and what they tell of goes on."""
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP)

_FILES: dict[type[msgspec.Struct], str] = {
    Run: "run.json",
    Study: "study.json",
    Bench: "bench.json",
    IoBench: "io.json",
    Plan: "plan.json",
}
_Document = TypeVar("_Document", bound=JobRecord | Study | Plan)


def rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.jsonl"


def write_failure(folder: Path, failure: Failure) -> bool:
    """Write `error.json` unless another rank was first; returns whether this one was."""
    try:
        create_file(folder / "error.json", _readable(failure), by=failure.rank, synced=False)
    except FileExistsError:
        return False
    return True


def read_failure(folder: Path) -> Failure | None:
    try:
        return msgspec.json.decode(read_regular(folder / "error.json"), type=Failure)
    except FileNotFoundError:
        return None
    except DECODE_ERRORS as error:
        raise UserError(f"{folder / 'error.json'} is damaged: {error}") from error


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/phalanx or ~/.cache/phalanx; a temporary folder for a user with no home."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return xdg / "phalanx"
    try:
        return Path.home() / ".cache" / "phalanx"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"phalanx-{os.getuid()}"


def write_atomically(path: Path, content: bytes, *, synced: bool = True) -> None:
    """Write `content` so that `path` holds either what it held before or all of it.

    synced: also after a loss of power. It takes milliseconds to seconds, which a rank that is being
    ended does not have: Open MPI's launcher gives it 0.2 s.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # a link of that name would lead elsewhere
            file.write(content)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def overwrite(path: Path, document: JobRecord) -> None:
    """Write `document` over the file of `path`, in the blocks that it has: for a full disk.

    Raises: OSError when even that is refused, or the document does not fit.
    """
    content = msgspec.json.encode(document)
    with path.open("r+b") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if len(content) > num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        file.write(content.ljust(num_bytes - 1) + b"\n")


def create(path: Path, document: JobRecord) -> None:
    """Write a new record as `create_file`."""
    create_file(path, _readable(document))


def create_file(path: Path, content: bytes, *, by: int | None = None, synced: bool = True) -> None:
    """Write a new file, whole or not at all.

    by: number that no other process has which may create the file, on any host; None: process id.

    Raises: FileExistsError if `path` exists, also if another process creates it meanwhile.
    """
    temporary = path.with_name(f".{path.name}.new.{os.getpid() if by is None else by}")
    try:
        write_atomically(temporary, content, synced=synced)
        _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> None:
    """Give the content of `temporary` the name `path` as well; a copy where the file system has no
    hard links (exFAT, many FUSE and CIFS mounts).

    Raises: FileExistsError when `path` exists.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(temporary, path)


def _copy(temporary: Path, path: Path) -> None:
    with path.open("xb") as file:  # only one of several processes succeeds
        try:
            file.write(temporary.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


def write_record(folder: Path, document: JobRecord | Study | Plan) -> None:
    write_atomically(record_file(folder, type(document)), _readable(document))


def record_file(folder: Path, kind: type[msgspec.Struct]) -> Path:
    return folder / _FILES[kind]


def read_run(folder: Path) -> Run:
    return read_record(folder, Run)


def read_study(folder: Path) -> Study:
    return read_record(folder, Study)


def read_bench(folder: Path) -> Bench:
    return read_record(folder, Bench)


def read_io(folder: Path) -> IoBench:
    return read_record(folder, IoBench)


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of one rank. A last line that was cut short is left out: it is what a
    killed process leaves behind. Any other damage raises UserError with the line's number."""
    yield from EventTail(path).read_new()


class EventTail:
    """Reads a rank's file while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._line_number = 0

    def read_new(self) -> Iterator[Event]:
        """Yield the whole lines that were added since the last call; none if there is no file."""
        if not self._path.exists():
            return
        with readable(self._path):
            opened = open_regular(self._path)
        with opened as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                self._line_number += 1
                yield self._decode(line)

    def _decode(self, line: bytes) -> Event:
        try:
            event = _decoder().decode(line)
        except DECODE_ERRORS as error:
            message = f"{self._path} line {self._line_number} is not a record: {error}"
            raise UserError(message) from error
        return event


@cache
def _decoder() -> msgspec.json.Decoder[Event]:
    """Return a decoder of the events of every kind of job; all are defined by now."""
    return msgspec.json.Decoder(reduce(or_, Event.__subclasses__()))


Noted = Event | tuple[Callable[..., Event], *tuple[Any, ...]]
"""An event, or a function and its arguments that make one."""


class EventWriter:
    """Appends events to a rank's file; lines reach the disk at least twice a second.

    Making and encoding them is put off until then. In a loop where every microsecond counts, `note`
    them, and `flush` once `due_at` is past; elsewhere `add` does both.

    Where the disk takes no more, records end, which is printed once. The last event comes all the
    same, in place of the last lines: how a rank has ended is read from there.
    """

    def __init__(self, path: Path, *, needs_end: bool = False) -> None:
        """needs_end: raise OSError where not even the last event can be written, since nothing else
        tells how the run has ended."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._file = path, path.open("ab", buffering=0)
        self._encoder, self._needs_end = msgspec.json.Encoder(), needs_end
        self._waiting: list[Noted] = []
        self.note: Callable[[Noted], None] = self._waiting.append
        """Takes an event, or a function and its arguments, which make one when it is written."""
        self.due_at = time.perf_counter() + FLUSH_INTERVAL_S
        """Time at which waiting lines are written, by `time.perf_counter()`."""
        self.why_ended = ""
        """File and reason where records have ended before the run."""

    def add(self, event: Event) -> None:
        self.note(event)
        if time.perf_counter() >= self.due_at:
            self.flush()

    def flush(self) -> None:
        waiting = self._waiting.copy()
        del self._waiting[: len(waiting)]
        if self.why_ended:
            self._waiting[:0] = waiting[-1:]
            with contextlib.suppress(OSError):
                os.utime(self._path)  # whoever reads it learns that this rank goes on
        else:
            self._write([_made(noted) for noted in waiting])
        self.due_at = time.perf_counter() + FLUSH_INTERVAL_S

    def append(self, event: Event) -> None:
        """Write one event at once, from any thread; it may come before others that wait."""
        if not self.why_ended:
            self._write([event])

    def close(self) -> None:
        if self._file.closed:
            return
        last = self._waiting[-1:]
        self.flush()
        if self.why_ended and last:
            event = _made(last[0])
            with contextlib.suppress(OSError):
                self._write_over_end([self._notice(event.at_s), event])
        self._file.close()

    def _write(self, events: list[Event]) -> None:
        """Append all of them, or none and end the records."""
        if self._file.closed:  # ranks may be lost after the end of this one
            self._file = self._path.open("ab", buffering=0)
        descriptor = self._file.fileno()
        num_bytes = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, self._encoder.encode_lines(events))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, num_bytes)
            self._end_early(error, events[-1].at_s)

    def _end_early(self, error: OSError, at_s: float) -> None:
        """End the records. Raises: `error` where the run cannot go on without."""
        self.why_ended = why_full(self._path, error)
        try:
            self._write_over_end([self._notice(at_s)])
        except OSError:
            if self._needs_end:
                raise error from None
        report_end(self.why_ended)

    def _notice(self, at_s: float) -> NoticeEvent:
        return NoticeEvent(at_s=at_s, text=RECORDS_END + self.why_ended)

    def _write_over_end(self, events: list[Event]) -> None:
        """Write events over the last lines, in the blocks that the file has.

        Raises: OSError where even that is refused.
        """
        lines = self._encoder.encode_lines(events)
        with self._path.open("r+b", buffering=0) as file:
            room = os.fstat(file.fileno()).st_size - len(lines)
            file.seek(max(0, room - _LONGEST_LINE))
            before = file.read(max(0, room - file.tell()))
            start = before.rfind(b"\n") + 1
            if start > 0:  # else it would take the place of the first line
                file.seek(start - len(before), os.SEEK_CUR)
                write_all(file.fileno(), lines)
                file.truncate()


_LONGEST_LINE = 1 << 16


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises: OSError, where the disk takes but a part."""
    while data:
        data = data[os.write(descriptor, data) :]


def why_full(path: Path, error: OSError) -> str:
    """Return file and reason of a disk that takes no more. Raises: any other error."""
    if error.errno not in FULL:
        raise error
    return f"{path}: {error.strerror}"


def report_end(why: str) -> None:
    """Print that records end. why: file and reason."""
    print_note(f"records end here, but the run continues: {why}")


def _made(noted: Noted) -> Event:
    return noted if isinstance(noted, Event) else noted[0](*noted[1:])


def _readable(document: JobRecord | Study | Plan | Failure) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def read_record(folder: Path, kind: type[_Document]) -> _Document:
    """Raises: UserError, naming the file, when it is missing, damaged or from a newer Phalanx."""
    path = record_file(folder, kind)
    try:
        with readable(path):
            if not path.exists():
                raise UserError(f"{path} does not exist")
            document = msgspec.json.decode(read_regular(path), type=kind)
    except DECODE_ERRORS as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if document.schema > SCHEMA_VERSION:
        raise UserError(
            f"{path} has schema {document.schema}; this Phalanx reads up to {SCHEMA_VERSION}"
        )
    return document
