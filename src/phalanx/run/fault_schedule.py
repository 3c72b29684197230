"""Schedule of injected faults: which rank is struck, how and when, drawn from a seed. Pure.

Every rank has the same schedule and acts on it alone, so the faults of a run can be made again, on
one node or several.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, get_args

from phalanx.errors import UserError
from phalanx.records.events import FaultKind

INJECT = "PHALANX_INJECT"
"""Faults to inject, in every rank's environment: words as on the command line."""

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
PAUSE_S = 5.0
"""Time after which a stopped rank goes on, where none is given."""
NEVER = "never"
_FORM = "KIND:SECONDS[:SEED], such as kill:15 or stop:20:7"


@dataclass(frozen=True, kw_only=True)
class FaultInjection:
    """Faults of one kind: one every so many seconds."""

    kind: FaultKind
    mean_s: float
    """Mean time between two; each is drawn from half of it to one and a half times of it."""
    seed: int = 0
    pause_s: float | None = PAUSE_S
    """Time after which a stopped rank goes on; None: it never does."""

    @property
    def is_deadly(self) -> bool:
        """Return whether whoever is struck is lost."""
        return self.kind != "stop" or self.pause_s is None


class ScheduledFault(NamedTuple):
    """One fault of a schedule."""

    at_s: float
    """Time since the first step."""
    kind: FaultKind
    rank: int
    """Number that the rank started with."""
    pause_s: float | None
    """Time after which a stopped rank goes on; None: it never does."""


def parse_injection(text: str) -> FaultInjection:
    """Return the faults that a word of the command line asks for: KIND:SECONDS[:SEED[:PAUSE]].

    Raises: UserError.
    """
    kind, *others = text.split(":")
    found = next((known for known in KINDS if known == kind), None)
    if found is None:
        raise UserError(f"--inject {text}: {kind!r} is not a fault: give {_FORM} of {_list(KINDS)}")
    if not 1 <= len(others) <= 3:
        raise UserError(f"--inject {text}: give {_FORM}")
    mean_s = _seconds(text, others[0], "the seconds between two faults")
    seed, pause_s = 0, PAUSE_S if found == "stop" else None
    if len(others) > 1:
        try:
            seed = int(others[1])
        except ValueError:
            raise UserError(
                f"--inject {text}: the seed {others[1]!r} is not a whole number"
            ) from None
    if len(others) > 2:
        if found != "stop":
            raise UserError(f"--inject {text}: only a stop takes a pause: leave {others[2]!r} out")
        pause_s = None if others[2] == NEVER else _seconds(text, others[2], "the pause of a stop")
    return FaultInjection(kind=found, mean_s=mean_s, seed=seed, pause_s=pause_s)


def parse_injections(texts: Sequence[str], num_ranks: int | None = None) -> list[FaultInjection]:
    """Return the faults that words of the command line ask for. num_ranks: None: not known yet.

    Raises: UserError, also for faults named twice, and for a single rank.
    """
    found = [parse_injection(text) for text in texts]
    for number, injection in enumerate(found):
        if injection in found[:number]:
            raise UserError(f"--inject {texts[number]} is given twice: change the seed of one")
    if found and num_ranks == 1:
        raise UserError(
            f"--inject {texts[0]}: there is one rank, and the last living rank is never hit: start "
            "at least 2"
        )
    return found


def injections_of(environ: Mapping[str, str]) -> list[FaultInjection]:
    """Return the faults that a rank's environment asks for."""
    return parse_injections(environ.get(INJECT, "").split())


def fault_schedule(
    injections: Sequence[FaultInjection], num_ranks: int, *, spares: int = 0, attempt: int = 0
) -> Iterator[ScheduledFault]:
    """Yield the faults of a run in the order of their times, without end, or until a single rank
    is left.

    spares: ranks that take the places of those that are lost, one after the other.
    attempt: number of times that the run was started before; each start has faults of its own.
    """
    living, waiting = list(range(num_ranks)), list(range(num_ranks, num_ranks + spares))
    draws = [_draws(injection, attempt) for injection in injections]
    for at_s, share, injection in heapq.merge(*draws, key=itemgetter(0)):
        if len(living) < 2:
            return
        rank = living[int(share * len(living))]
        if injection.is_deadly:
            living.remove(rank)
            living += waiting[:1]
            del waiting[:1]
        pause_s = injection.pause_s if injection.kind == "stop" else None
        yield ScheduledFault(at_s, injection.kind, rank, pause_s)


def _draws(
    injection: FaultInjection, attempt: int
) -> Iterator[tuple[float, float, FaultInjection]]:
    """Yield time and place, from 0 to 1 among those that live, of each fault."""
    words = (injection.kind, injection.mean_s, injection.seed, attempt)
    generator, at_s = random.Random(":".join(map(str, words))), 0.0
    while True:
        at_s += injection.mean_s * generator.uniform(0.5, 1.5)
        yield at_s, generator.random(), injection


def _seconds(text: str, word: str, name: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"--inject {text}: {name} must be a positive number, not {word!r}")
    return value


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
