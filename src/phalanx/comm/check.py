"""Debug mode: ranks compare what they are about to do before they do it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Call
from phalanx.comm.collectives import bruck, pairwise
from phalanx.comm.errors import MismatchError
from phalanx.comm.select import FEW_RANKS
from phalanx.comm.transport import Transport

Counts = Sequence[int | None]


class CallSignature(NamedTuple):
    """Signature of one rank's call, sent to its peers for comparison."""

    agreed: str
    text: str
    sent: Counts
    expected: Counts


def compare_calls(transport: Transport, call: Call, name_of: Callable[[int], str]) -> None:
    """Tell the others what this rank calls, and hear what they call. Collective.

    Cost:   2 all-gathers of a short text a rank.
    Raises: MismatchError on every rank when they do not fit.
    """
    own = json.dumps([call.agreed, str(call), call.sent, call.expected]).encode()
    lengths = np.zeros(transport.size, np.int64)
    lengths[transport.rank] = len(own)
    all_gather = bruck.all_gather if transport.size > FEW_RANKS else pairwise.all_gather
    cells = [Buffer.of(lengths[rank : rank + 1]) for rank in range(transport.size)]
    all_gather(transport, cells, cells[transport.rank])
    texts = [np.zeros(length, np.uint8) for length in lengths]
    all_gather(
        transport,
        [Buffer.of(text) for text in texts],
        Buffer.of(np.frombuffer(own, np.uint8)),
    )
    disagreement = compare([CallSignature(*json.loads(text.tobytes())) for text in texts], name_of)
    if disagreement is not None:
        raise MismatchError(disagreement)


def compare(calls: Sequence[CallSignature], name_of: Callable[[int], str]) -> str | None:
    """Describe which rank called what if the calls do not match; None if they do."""
    if len({call.agreed for call in calls}) > 1:
        return describe_calls([call.agreed for call in calls], name_of)
    for source, sender in enumerate(calls):
        for dest, receiver in enumerate(calls):
            sent = sender.sent[dest] if sender.sent else None
            expected = receiver.expected[source] if receiver.expected else None
            if sent is not None and expected is not None and sent != expected:
                return (
                    f"in {sender.agreed} rank {name_of(source)} sends {sent} elements to rank "
                    f"{name_of(dest)}, which expects {expected}"
                )
    return None


def describe_calls(texts: Sequence[str], name_of: Callable[[int], str]) -> str:
    """texts: of each rank; those of the same text are named together."""
    callers: dict[str, list[str]] = {}
    for rank, text in enumerate(texts):
        callers.setdefault(text, []).append(name_of(rank))
    return ", ".join(
        f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(names)} called {text}"
        for text, names in callers.items()
    )
