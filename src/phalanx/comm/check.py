"""Debug mode: ranks compare what they are about to do before they do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from phalanx.comm.collective import Call
from phalanx.comm.errors import MismatchError
from phalanx.comm.set_up import SetupCommunicator

Counts = Sequence[int | None]


class CallSignature(NamedTuple):
    """Signature of one rank's call, sent to its peers for comparison."""

    agreed: str
    text: str
    sent: Counts
    expected: Counts


def compare_calls(ranks: SetupCommunicator, call: Call, name_of: Callable[[int], str]) -> None:
    """Tell the others what this rank calls, and hear what they call. Collective.

    Raises: MismatchError on every rank when they do not fit.
    """
    own = CallSignature(call.agreed, str(call), call.sent, call.expected)
    disagreement = compare(ranks.allgather(own), name_of)
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
