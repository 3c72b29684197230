"""Check that runs in one table were made by one commit on one machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.schema import Environment
from phalanx.report.content import Topic, make_topic
from phalanx.report.format import joined
from phalanx.report.measures import RunMeasure

CHANGED = "-changed"
"""What ends the commit of a tree that was changed since."""

FACTS = {
    "commit": "the commit",
    "phalanx": "Phalanx",
    "hostname": "the host",
    "processor": "the processor",
    "cores": "the number of cores",
    "python": "Python",
    "torch": "PyTorch",
    "mpi": "the MPI library",
    "packages": "the packages",
}


def comparability_topic(runs: Sequence[RunMeasure]) -> Topic:
    """Return the differences of environment between the completed runs."""
    known = [r.run.environment for r in runs if r.run and r.status == "completed"]
    texts = [text for name, words in FACTS.items() if (text := _differing(name, words, known))]
    if any((environment.commit or "").endswith(CHANGED) for environment in known):
        texts.append("Made by a source tree that was changed since its commit.")
    return make_topic(
        "Not made alike",
        "Runs of several commits, machines or versions are in one comparison: what differs "
        "between them may be that.",
        [("", text) for text in texts],
    )


def _differing(name: str, words: str, known: Sequence[Environment]) -> str | None:
    """Return the differing values; None where all known ones agree."""
    values = [_shown(value) for e in known if (value := getattr(e, name)) is not None]
    counts = {value: values.count(value) for value in dict.fromkeys(values)}
    if len(counts) < 2:
        return None
    parts = [f"{value} in {count} of {len(values)} runs" for value, count in counts.items()]
    return f"{words[0].upper()}{words[1:]} differs: {joined(parts)}."


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in sorted(value.items()))
    return str(value)
