"""Format of a result folder: `run.json` once a run, `rank-<r>.jsonl` one line an event.

Every figure that Phalanx shows is computed from these. Names carry their unit: times in seconds,
sizes in bytes. Fields that a reader does not know are ignored, so an older Phalanx reads newer
files. The events are those of `events.py`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from phalanx.records.regular_file import FileName

SCHEMA_VERSION = 1

Status = Literal["planned", "running", "completed", "failed", "interrupted"]
LearningRateRule = Literal["none", "linear", "sqrt"]
LearningRateSchedule = Literal["constant", "step", "cosine", "polynomial"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Training configuration: all that decides the numbers, after defaults were filled in."""

    model: str  # name of the model
    dataset: str  # name of the data set
    strategy: str  # one of train.config.Strategy, or a scheme of examples/scratch
    ranks: int  # number of ranks
    threads: int  # compute threads of each rank
    global_batch_size: int  # samples per step, over all ranks
    epochs: int  # passes over the training samples
    learning_rate: float  # peak value, after the learning-rate rule
    learning_rate_rule: LearningRateRule  # rule for the learning rate of larger batches
    learning_rate_schedule: LearningRateSchedule = "constant"  # change over the steps
    optimizer: str  # name of the optimizer
    seed: int  # seed of the parameters and of the order of samples
    dtype: str  # type of the parameters
    mesh: dict[str, int] = {}  # axes of more than one rank, e.g. {"dp": 2, "tp": 2}
    nodes: int = 1  # number of nodes of the ranks that Phalanx starts
    options: dict[str, str | int | float | bool] = {}  # further options of the strategy or model

    @property
    def num_spares(self) -> int:
        """Ranks beside `ranks` that waited to take the places of those that died, the last."""
        return int(self.options.get("spares", 0))


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Environment of the run. `None` where the machine does not report it."""

    hostname: str  # name of the node
    processor: str  # model of the processor
    cores: int  # usable by this process, not merely present
    memory_bytes: int | None  # memory of the machine, None if unknown
    operating_system: str  # name and version
    python: str  # version of Python
    torch: str  # version of PyTorch
    mpi: str | None  # library and version, None when the run used none
    packages: dict[str, str]  # versions by package
    phalanx: str  # version of Phalanx
    commit: str | None  # commit of the working directory, None outside a repository
    load_average: float | None  # one-minute average when the run began


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    status: Status  # end of the run
    error: str | None = None  # the first error, one or two lines
    rank: int | None = None  # the rank that raised it
    lost: list[int] = []  # ranks that died, of a run that the others completed


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that will write the outcome: a run whose owner has died runs no more."""

    hostname: str  # name of the node
    process_id: int  # number of the process on its node
    process_began: str | None = None  # start time; distinguishes reused process ids
    system: str | None = None  # boot id and process-id namespace; None where unknown


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A look at the machine between runs: threads that compute, one for each core."""

    core_share: float  # part of the time that a thread had a core, mean over the threads
    lowest: float  # share of the thread that had the least


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration, environment and outcome of a job, whatever its kind."""

    schema: int = SCHEMA_VERSION  # version of the format
    command: str  # command that repeats this job
    config: dict[str, object]  # every option, defaults filled in
    environment: Environment  # machine and software of rank 0
    outcome: Outcome  # end of the job
    started_at: str  # ISO 8601, UTC
    ended_at: str | None = None  # time in UTC, None while it runs
    owner: Owner | None = None  # None in records of an older Phalanx


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """A new start of a run's ranks after a loss, by the process that owns the run."""

    folder: FileName  # folder of the later records, below the run's
    lost_at: str  # time at which all knew of the loss: ISO 8601, UTC, to the millisecond
    restarted_at: str  # time in UTC
    reason: str  # end of the ranks before it, in words
    steps: int | None  # updates that these had made; None where they kept no records
    ranks: int  # number of ranks from then on
    hosts: list[str] = []  # hosts of several nodes, "n0:4"
    silent: dict[str, str] = {}  # hosts that do not answer and are left out, with the reason
    checkpoint: str | None = None  # newest one; None: from the beginning
    memory_of: str | None = None  # host that had it in memory; None: it was on the disk


class Run(JobRecord, frozen=True, kw_only=True):
    """`run.json`: a training."""

    study: str  # identifier of the study
    run: str  # name of the run's folder
    setting: Setting  # training configuration
    probes: list[Probe] = []  # probes before and after it, in a study
    restarts: list[Restart] = []  # whose records are in folders of their own


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """`study.json`: the runs of a study; one that has no folder yet is still to do."""

    schema: int = SCHEMA_VERSION  # version of the format
    study: str  # identifier of the study
    kind: str  # "scaling" or "parallelism"
    command: str  # command line that started it
    started_at: str  # time in UTC
    runs: list[FileName]  # folders of the runs, in their order
    left_out: dict[str, str] = {}  # requested runs that cannot be made, and why
    common: dict[str, object] = {}  # options that decide the numbers, the same in all runs
    configurations: dict[str, dict[str, object]] = {}  # and those of each run besides


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """`error.json`: the first error of a run, written by the rank that raised it."""

    rank: int  # rank that failed first
    mendable: bool  # True: the user can fix it; shown without traceback, with exit code 2
    message: str  # its error
    traceback: str  # its traceback
    hostname: str | None = None  # node of the rank; None in records of an older Phalanx
