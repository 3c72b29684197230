"""Questions to every node, whoever carries them: ssh, a rank of MPI, or nobody."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.doctor.nodes import facts

_READINGS = 4  # readings per clock

Words = Mapping[str, tuple[str, str]]
"""File and word in each folder, by the folder's name."""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """The answers of one node."""

    facts: Mapping[str, Any]
    """Facts as `facts.answer` gives them."""
    clock_offset_s: float
    """The node's clock less ours."""
    clock_error_s: float
    sees: Mapping[str, bool]
    """True for a folder, by its name, that is the one which this process sees."""
    unreachable: Sequence[str] = ()
    """Addresses of other nodes from which nothing came back."""


Ask = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Carries a question to a node, and returns its answer."""


def ask_more(
    ask: Ask,
    found: Mapping[str, Any],
    words: Words,
    *,
    addresses: Sequence[str] = (),
    port: int = 0,
) -> NodeFacts:
    """Ask a node whose facts are `found` for its clock, the words that it can read, and which of
    the addresses give no answer."""
    read = ask({"read": dict(words.values())})
    offset_s, error_s = _read_clock(ask)
    unreachable: Sequence[str] = ()
    if addresses:
        unreachable = ask({"reach": list(addresses), "port": port})["unreachable"]
    return NodeFacts(
        facts=found,
        clock_offset_s=offset_s,
        clock_error_s=error_s,
        sees={name: read[file] for name, (file, _) in words.items()},
        unreachable=unreachable,
    )


@contextlib.contextmanager
def words_in(folders: Mapping[str, str]) -> Iterator[dict[str, tuple[str, str]]]:
    """Write a random word into each folder that can be written to, or what exists of its path.

    folders: paths by name. Yields (file, word) by name; the files are removed after.
    """
    words = {}
    with contextlib.ExitStack() as stack:
        for name, folder in folders.items():
            word = secrets.token_hex(16)
            file = facts.existing_parent(folder) / f".phalanx-preflight-{word}"
            with contextlib.suppress(OSError):
                stack.callback(file.unlink, missing_ok=True)
                file.write_text(word)
                words[name] = (str(file), word)
        yield words


def _read_clock(ask: Ask) -> tuple[float, float]:
    """Return the offset of a node's clock to ours, and its largest error, by the shortest trip."""
    trips = []
    for _ in range(_READINGS):
        asked_s = time.time()
        read_s = ask({"time": True})["time_s"]
        heard_s = time.time()
        trips.append(((heard_s - asked_s) / 2, read_s - (asked_s + heard_s) / 2))
    error_s, offset_s = min(trips)
    return offset_s, error_s
