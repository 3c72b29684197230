"""A study of the user's own, from a file: which axes, which program, which page.

name = "rates"
program = "my_train.py --lr {lr}"       # without it `phalanx train` runs, with these options
[run]
ranks = 2
[axes]                                  # every combination is a run, the first axis outermost
seed = [0, 1, 2]
lr = [0.001, 0.01]
[page]                                  # report/page_file.py
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from phalanx.errors import UserError
from phalanx.jobs.record import RUNS
from phalanx.report.page_file import NAME as PAGE_FILE
from phalanx.report.page_file import read_page
from phalanx.study.epoch_lines import ProgramConfig
from phalanx.study.programs import ProgramTraining
from phalanx.study.run import StudyRun, TrainingRun
from phalanx.train.config import TrainConfig


class StudyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study as its file says it: a run for every combination of the values of its axes."""

    name: str
    run: dict[str, Any] = {}
    """Options of every run: of `phalanx train`; of a program strategy, ranks and threads."""
    program: str = ""
    """The program and its words, in which {axis} stands for the value of an axis."""
    epoch_pattern: str | None = None
    page: dict[str, Any] = {}
    axes: dict[str, list[str | int | float | bool]]
    """The first is the outermost."""
    leave_out: list[dict[str, str | int | float | bool]] = []
    """Combinations that are no runs: those that have all of an entry's values."""

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield the combinations, in their order."""
        for values in itertools.product(*self.axes.values()):
            point = dict(zip(self.axes, values, strict=True))
            if not any(entry.items() <= point.items() for entry in self.leave_out):
                yield point


def read_file(path: Path) -> StudyFile:
    """Read the file of a study.

    Raises: UserError where it cannot be read, or says what no study has.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), StudyFile)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: {error}") from error
    empty = [axis for axis, values in found.axes.items() if not values]
    if empty or not found.axes:
        raise UserError(f"{path}: axes: {empty[0] if empty else 'none'} needs at least one value")
    return found


def own_folder(study: StudyFile, path: Path) -> Path:
    """Return a folder under runs/ that is the same for the same file."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:6]
    return RUNS / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', study.name)}-{digest}"


def keep_file(path: Path, folder: Path) -> None:
    """Keep the file in the folder of its study, where its page is found.

    Raises: UserError where another one is there, or its page names what there is not.
    """
    kept = folder / PAGE_FILE
    if kept.exists() and kept.read_bytes() != path.read_bytes():
        raise UserError(f"{folder} holds the study of another file: use another --study-dir")
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(path.read_bytes())
    try:
        read_page(folder)
    except UserError:
        kept.unlink()
        raise


def runs_of(study: StudyFile) -> list[StudyRun]:
    """Return every run of the study, in the order of its axes.

    Raises: UserError for options that do not fit, or where nothing is left to run.
    """
    points = list(study.points())
    if not points:
        raise UserError("leave_out leaves nothing to run")
    return [_run_of(study, point) for point in points]


def _run_of(study: StudyFile, point: Mapping[str, Any]) -> StudyRun:
    name = "-".join(re.sub(r"[^\w.]+", "-", f"{axis}-{value}") for axis, value in point.items())
    options = {**study.run, **point}
    if not study.program:
        try:
            config = TrainConfig.from_options(**options)
        except TypeError as error:
            raise UserError(
                f"axes and run name an option that phalanx train lacks: {error}"
            ) from error
        return TrainingRun(name=name, config=config, point=point)
    try:
        words = tuple(word.format(**options) for word in shlex.split(study.program))
    except KeyError as error:
        raise UserError(f"program: {{{error.args[0]}}} is neither an axis nor in [run]") from error
    ranks = int(options.get("ranks", 1))
    strategy = options.get("strategy", "mpi" if ranks > 1 else "sequential")
    return ProgramTraining(
        name=name,
        point=point,
        config=ProgramConfig(
            words=words,
            strategy=str(strategy),
            ranks=ranks,
            threads=int(options.get("threads", 1)),
            seed=int(options.get("seed", 0)),
            epoch_pattern=study.epoch_pattern,
        ),
    )
