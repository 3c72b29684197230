"""Comparison of two bitwise runs: the same bits, or where they part, and most likely why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from phalanx.errors import UserError
from phalanx.records.events import Certificate, DigestEvent, DigestNamesEvent, FinishedEvent
from phalanx.records.files import rank_file, read_events, read_run
from phalanx.records.schema import Run

DIGITS = 16
"""Length of a digest."""
OF_RUN = (
    *("model", "dataset", "optimizer", "seed", "global_batch_size", "epochs", "dtype"),
    *("learning_rate", "learning_rate_schedule"),
)
"""Fields of the setting that decide the numbers of a bitwise run, beside its options."""
OF_CERTIFICATE = ("steps", "micro_batches", "threads", "torch", "torch_build", "instruction_set")
MAX_NAMED = 3
"""Tensors that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class BitwiseRun:
    """The records of a bitwise run that its bits can be told by."""

    folder: Path
    run: Run
    certificate: Certificate | None
    """None of a run that has not ended."""
    names: Sequence[str]
    """Tensors that the digests are of."""
    before: str
    """Digests before the first step."""
    steps: Mapping[int, str] = field(repr=False)
    """Digests after each step."""

    @property
    def conditions(self) -> dict[str, object]:
        """Return what decides the bits, by name."""
        setting = self.run.setting
        found: dict[str, object] = {n: getattr(setting, n) for n in OF_RUN}
        found |= {"threads": setting.threads, "torch": self.run.environment.torch}
        found |= setting.options
        if self.certificate is not None:
            found |= {name: getattr(self.certificate, name) for name in OF_CERTIFICATE}
        return found


@dataclass(frozen=True, kw_only=True)
class Parting:
    """First difference between two runs."""

    step: int | None
    """Step after which they differ; None: before the first."""
    names: Sequence[str]
    """Tensors, in the order of the model."""

    @property
    def where(self) -> str:
        """Words for the place."""
        when = "before the first step" if self.step is None else f"at step {self.step}"
        others = len(self.names) - MAX_NAMED
        more = f" and {others} more" if others > 0 else ""
        return f"{when}, in {', '.join(self.names[:MAX_NAMED])}{more}"


def read_bitwise_run(folder: Path) -> BitwiseRun:
    """Read the records of a bitwise run.

    Raises: UserError for a folder without them, or of a run that was not bitwise.
    """
    run = read_run(folder)
    if run.outcome.status == "planned":
        raise UserError(
            f"{folder} is planned, not run, and has no bits to compare: phalanx report, given the "
            "folder that holds its folder and others, puts its times beside theirs"
        )
    certificate, first, steps = None, None, dict[int, str]()
    folders = [folder, *(folder / restart.folder for restart in run.restarts)]
    named = [rank_file(each, rank) for each in folders for rank in writers(run)]
    for event in chain.from_iterable(read_events(file) for file in named if file.exists()):
        match event:
            case DigestNamesEvent():
                first = first or event
            case DigestEvent():
                steps[event.step] = event.digests
            case FinishedEvent():
                certificate = certificate or event.certificate
    if first is None:
        raise UserError(
            f"{folder} has no digests of its parameters: only bitwise runs record them (phalanx "
            "train --bitwise or phalanx.start(bitwise=True))"
        )
    return BitwiseRun(
        folder=folder,
        run=run,
        certificate=certificate,
        names=first.names,
        before=first.digests,
        steps=steps,
    )


def writers(run: Run) -> range:
    """Return the ranks that may have written digests: rank 0, or others after its death."""
    num_started = run.setting.ranks + run.setting.num_spares
    return range(num_started if run.outcome.lost or run.restarts else 1)


def find_parting(one: BitwiseRun, other: BitwiseRun) -> Parting | None:
    """Return where two runs part, None where all digests that both have are the same.

    Raises: UserError where nothing can be compared.
    """
    if list(one.names) != list(other.names):
        raise UserError(
            f"{one.folder} and {other.folder} are of different models: "
            f"{_first_difference(one.names, other.names)}"
        )
    first, others_first = min(one.steps, default=0), min(other.steps, default=0)
    if first == others_first and one.before != other.before:
        return Parting(step=None, names=differing(one.names, one.before, other.before))
    common = sorted(one.steps.keys() & other.steps.keys())
    if not common:
        raise UserError(f"{one.folder} and {other.folder} have no step in common")
    for step in common:
        if one.steps[step] != other.steps[step]:
            return Parting(
                step=step, names=differing(one.names, one.steps[step], other.steps[step])
            )
    return None


def differing(names: Sequence[str], one: str, other: str) -> list[str]:
    """Return the names of the tensors whose digests differ."""
    return [
        name
        for number, name in enumerate(names)
        if one[DIGITS * number : DIGITS * (number + 1)]
        != other[DIGITS * number : DIGITS * (number + 1)]
    ]


def differing_conditions(one: BitwiseRun, other: BitwiseRun) -> list[str]:
    """Return what decides the bits and differs, as `name: value and value`."""
    here, there = one.conditions, other.conditions
    names = [name for name in here | there if here.get(name) != there.get(name)]
    return [
        f"{name.replace('_', ' ')}: {here.get(name, 'none')} and {there.get(name, 'none')}"
        for name in names
        if name != "steps"
    ]


def judge(one: BitwiseRun, other: BitwiseRun) -> tuple[bool, list[str]]:
    """Return whether two runs are the same bits, and sentences that say so.

    Raises: UserError where one of them has not ended, and as far as it came they are the same.
    """
    parting = find_parting(one, other)
    if parting is None:
        for run in (one, other):
            if run.certificate is None:
                last = max(one.steps.keys() & other.steps.keys())
                raise UserError(
                    f"{run.folder} has no certificate, since it is {run.run.outcome.status}: "
                    f"identical bits up to step {last}; its end is unknown"
                )
        assert one.certificate is not None and other.certificate is not None, "checked"
        if one.certificate.sha256 == other.certificate.sha256:
            return True, ["the same bits"]
    causes = differing_conditions(one, other)
    if parting is not None:
        said = f"different bits: they first differ {parting.where}"
    elif _steps(one) != _steps(other):
        said = f"different bits: the same for {min(_steps(one), _steps(other))} steps, but one made"
        said += f" {max(_steps(one), _steps(other))}"
    else:
        said = "different bits: the parameters are identical after every step, but the "
        said += "optimizer's state differs at the end"
    likely = (
        f"likely cause: {'; '.join(causes)}"
        if causes
        else (
            "options, versions and processors in the records agree: perhaps the program or the "
            "data changed, or memory failed"
        )
    )
    return False, [said, likely]


def _steps(run: BitwiseRun) -> int:
    return run.certificate.steps if run.certificate is not None else len(run.steps)


def rows_of(runs: Sequence[BitwiseRun]) -> list[list[str]]:
    """Return the rows of a table that compares runs: a name, and a cell a run."""
    certificates = [run.certificate for run in runs]
    names = ("sha256", *OF_CERTIFICATE)
    head = [
        ["ranks", *(str(run.run.setting.ranks) for run in runs)],
        ["strategy", *(run.run.setting.strategy for run in runs)],
    ]
    return head + [
        [name.replace("_", " "), *(_cell(certificate, name) for certificate in certificates)]
        for name in names
    ]


def _cell(certificate: Certificate | None, name: str) -> str:
    value = "–" if certificate is None else str(getattr(certificate, name))
    return f"{value[:8]}…{value[-4:]}" if re.fullmatch("[0-9a-f]{64}", value) else value


def _first_difference(one: Sequence[str], other: Sequence[str]) -> str:
    for here, there in zip(one, other, strict=False):
        if here != there:
            return f"{here} and {there}"
    return f"{len(one)} and {len(other)} tensors"
