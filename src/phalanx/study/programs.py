"""The scaling study of a program of the user's: which runs it is made of, and how one is made."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.binding import THREAD_POOLS
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.launch_program import Launch, program_words
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.ranks import RankRequest
from phalanx.records.files import record_file
from phalanx.records.schema import Run
from phalanx.run.defaults import SEED, STRATEGY
from phalanx.study.epoch_lines import EpochLines, ProgramConfig, compiled_pattern
from phalanx.study.run import StudyRun, environment_of
from phalanx.study.scaling import ScalingConfig, layouts

OF_BUILT_IN_MODELS = (
    "models", "batch_sizes", "epochs", "train_samples", "validation_samples", "dataset",
    "data_root", "lr", "device",
)  # fmt: skip
"""Options of the study that a program decides itself."""

STRATEGIES = ("sequential", "mpi", "shared", "gloo")


@dataclass(frozen=True, kw_only=True)
class ProgramTraining(StudyRun):
    """A run of a user's program."""

    config: ProgramConfig

    def check(self) -> None:
        program_words(self.config.words)
        if self.config.strategy != "sequential":
            find_mpi(os.environ)

    def make(self, folder: Path, *, study: str, console: Console, label: str) -> None:
        config = self.config
        lines = EpochLines(config.epoch_pattern)
        environment = {
            STRATEGY: config.strategy,
            SEED: str(config.seed),
            **dict.fromkeys(THREAD_POOLS, str(config.threads)),
        }
        with environment_of(self.environment), LiveLine(console, label) as live:
            ranks = RankRequest(
                ranks=config.ranks,
                threads=config.threads,
                is_alone=config.strategy == "sequential",
            )
            lines.on_line = live.draw
            Launch(
                words=program_words(config.words),
                ranks=ranks,
                output=lines,
                environment=environment,
            ).run(folder)
        if record_file(folder, Run).exists():
            return
        if config.epoch_pattern is None:
            raise RunFailedError(
                "the program wrote no records: train by phalanx.start, or print one line per epoch "
                "that --epoch-pattern matches"
            )
        lines.write_records(
            folder,
            study=study,
            strategy=config.strategy,
            config=config,
            nodes=ranks.num_nodes,
        )


def program_runs(
    study: ScalingConfig, words: str, epoch_pattern: str | None, cores: int
) -> list[ProgramTraining]:
    """Return every run of the study, seed after seed.

    words: the program and its arguments, as a shell has them.
    Raises: UserError for options of the study that a program decides itself.
    """
    _refuse_others(study)
    if epoch_pattern is not None:
        compiled_pattern(epoch_pattern)
    program = tuple(shlex.split(words))
    if not program:
        raise UserError("--program needs a program, for example --program my_train.py --epochs 3")
    name = Path(program[1] if program[0] == "-m" and len(program) > 1 else program[0]).stem
    return [
        ProgramTraining(
            name=f"{_plain(name)}-{layout.strategy}-{layout.label}-s{seed}",
            environment=layout.environment,
            config=ProgramConfig(
                words=program,
                strategy=layout.strategy,
                ranks=layout.ranks,
                threads=layout.threads,
                seed=seed,
                epoch_pattern=epoch_pattern,
            ),
        )
        for seed in study.seeds
        for layout in layouts(study, cores)
    ]


def file_state(words: str) -> str:
    """Return the digest of the program's file, so that runs of two versions are never mixed."""
    files = [Path(word) for word in shlex.split(words) if word.endswith(".py")]
    file = next((file for file in files if file.is_file()), None)
    return "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _refuse_others(study: ScalingConfig) -> None:
    defaults: Mapping[str, object] = asdict(ScalingConfig())
    given = [name for name in OF_BUILT_IN_MODELS if asdict(study)[name] != defaults[name]]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise UserError(f"{option} is for the built-in models: pass it to the program instead")
    others = [name for name in study.strategies if name not in STRATEGIES]
    if others:
        raise UserError(
            f"--strategies {others[0]} needs the layers of a built-in model: with --program use "
            f"{', '.join(STRATEGIES)}"
        )


def _plain(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name) or "program"
