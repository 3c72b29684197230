"""Writing of `trace.json` from the folder of a traced run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from phalanx.errors import UserError
from phalanx.records.files import write_atomically
from phalanx.report.trace.chrome import chrome_trace
from phalanx.report.trace.read import Traces, is_traced, read_traces

TRACE_NAME = "trace.json"


def write_missing_trace(folder: Path) -> None:
    """Merge the spans of a run that failed under the user's launcher, where nothing else does."""
    if is_traced(folder) and not (folder / TRACE_NAME).exists():
        write_trace(folder)


def write_trace(folder: Path) -> tuple[Path, Traces]:
    """Merge what the ranks have left.

    Raises: UserError when there is nothing, or it cannot be written.
    """
    traces, path = read_traces(folder), folder / TRACE_NAME
    content = msgspec.json.encode(chrome_trace(traces))
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"the trace cannot be written to {path}: {error.strerror}") from error
    return path, traces
