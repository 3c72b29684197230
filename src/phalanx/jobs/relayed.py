"""A rank whose records are sent to another node, as `relay.py` beside it does."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

RELAYED = "PHALANX_RELAYED"
"""The folder of the run, and the folder of this node in its place."""
CONTROL = ".control"
ACKNOWLEDGED = b"\n"
FLUSH_TIMEOUT_S = 2.0


def local_folder(folder: Path) -> Path | None:
    """Return the folder of this node whose files are sent to `folder`, or that is `folder`; None
    where none is."""
    text = os.environ.get(RELAYED)
    if text is None:
        return None
    there, here = json.loads(text)
    return Path(here) if str(folder.absolute()) in (there, here) else None


def flush() -> None:
    """Have everything sent that this rank has written; for ranks that are about to end the others,
    and with them whoever sends. Does nothing where the records are not sent, and never raises."""
    text = os.environ.get(RELAYED)
    if text is None:
        return
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(FLUSH_TIMEOUT_S)
        asking.connect(str(Path(json.loads(text)[1]) / CONTROL))
        asking.recv(1)
