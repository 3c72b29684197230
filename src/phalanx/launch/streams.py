"""The standard streams of a command or a rank, made fit for whatever is printed."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Print what a stream's encoding lacks as a question mark, and nothing to a closed stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # The lowest free descriptor is that of the stream: no file of a run gets it instead.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
