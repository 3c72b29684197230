"""Standard output and error that accept any text, also when closed."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Replace characters that a stream cannot encode, and discard output to a closed stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Takes the stream's descriptor, the lowest free one, so that no other file gets it.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
