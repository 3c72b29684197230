"""Options of a training run, but for those of its strategy. No torch, no MPI.

Annotations here are objects, not strings: the command line reads those of the class that inherits
these options, in whose module the names mean nothing.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from phalanx.errors import UserError
from phalanx.jobs.ranks import DEFAULT_STOP_S
from phalanx.models.options import ModelName, ModelOptions
from phalanx.parallel.option_groups import (
    AT_LEAST_ONE,
    BELOW_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    Needs,
    ruled,
)
from phalanx.parallel.options import StrategyName
from phalanx.records.schema import LearningRateRule, LearningRateSchedule

DtypeName = Literal["float32", "float64"]

SAVED = Needs("--checkpoint-dir", lambda options: options.checkpoint_dir is not None)
RESUMED = Needs("--resume", lambda options: options.resume is not None)

AUTOMATIC = Path("auto")
"""Value of `--resume`: the newest valid checkpoint in --checkpoint-dir, or none."""

DEFAULT_BATCH_SIZE = 128
GPT_BATCH_SIZE = 32
"""A sample of text asks for as many predictions as it has characters, and there are few samples:
with 128 a run has too few steps to learn much."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of the model and of the length of training."""

    model: ModelName | str = "mlp"
    """The network: `mlp` 784-256-128-10, `cnn` two convolutions, `rnn` an LSTM over 28 rows,
    `resnet` residual blocks, `gpt` a transformer for text; or your own, made by the function that
    file.py:function names."""

    loss: str | None = None
    """Your own loss, file.py:function: (outputs, targets) to its mean over the micro-batch.
    Default: cross entropy."""

    width: int | None = None
    """Hidden units of the `mlp` (256), channels of the `resnet` (16), width of the `gpt` (128)."""

    layers: int | None = None
    """Blocks of the `gpt` (4) or of each stage of the `resnet` (1)."""

    heads: int | None = None
    """Attention heads of the `gpt` (4)."""

    epochs: int = ruled(5, AT_LEAST_ONE)
    """Passes over the training data."""

    batch_size: int | None = ruled(None, AT_LEAST_ONE)
    """Global batch size: samples per update, summed over all ranks. Default: 128, gpt 32."""

    per_rank_batch_size: int | None = ruled(None, AT_LEAST_ONE)
    """Samples per update on each rank; the global batch then grows with the ranks."""

    seed: int = ruled(0, NOT_NEGATIVE)
    """Decides the initial weights and the order of the samples."""

    dtype: DtypeName = "float32"
    """Precision of parameters and arithmetic."""

    device: str = "cpu"
    """Device of each rank: `cpu`, an accelerator of PyTorch, such as `cuda` or `xpu:1`, or `auto`:
    that of the rank's number on its node, where there is one. Several ranks: `mpi` and `zero`."""

    @property
    def model_options(self) -> ModelOptions:
        return ModelOptions(width=self.width, layers=self.layers, heads=self.heads)

    @property
    def default_batch_size(self) -> int:
        return GPT_BATCH_SIZE if self.model == "gpt" else DEFAULT_BATCH_SIZE


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Options of checkpoints, resuming, records and the timeout."""

    checkpoint_dir: Path | None = None
    """Folder in which a checkpoint is written after every epoch. Default: none is written."""

    checkpoint_steps: int | None = ruled(None, AT_LEAST_ONE, SAVED)
    """Steps after which one is written, too. Default: after epochs only."""

    checkpoint_seconds: float | None = ruled(None, POSITIVE, SAVED)
    """Write one whenever so much time has passed since the last one, between two steps."""

    keep_checkpoints: int | None = ruled(None, AT_LEAST_ONE, SAVED)
    """Number of valid ones to keep, the newest. Default: those of epochs, and two within."""

    checkpoint_thread: bool = ruled(True, SAVED)
    """A thread writes a copy of the state while training goes on; else training waits."""

    resume: Path | None = None
    """Resume from this checkpoint, or from the newest complete one in this folder; `auto`: from the
    newest valid one in --checkpoint-dir, or begin where there is none."""

    restart_schedule: bool = ruled(False, RESUMED)
    """--resume: begin the learning rate's schedule anew, over the epochs that are left."""

    allow_changes: bool = ruled(False, RESUMED)
    """--resume: continue although data, batch or other options differ from the checkpoint's."""

    run_dir: Path | None = None
    """Folder of the run's records. Default: a new one under runs/train."""

    grace_s: float = ruled(DEFAULT_STOP_S, POSITIVE, SAVED)
    """Time for the ranks after SIGTERM to save a checkpoint and stop; then they are ended."""

    timeout_s: float = ruled(300.0, POSITIVE)
    """Fail when ranks have waited this long for each other, and name the missing ranks."""


Autocast = Literal["none", "bf16"]

SURVIVING = Needs("--survive", lambda options: options.survive)
BITWISE = Needs("--bitwise or --survive", lambda options: options.bitwise or options.survive)

WITHOUT_MPI: tuple[StrategyName, ...] = ("sequential", "gloo")


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Options of the parallelism that all strategies have."""

    strategy: StrategyName = "sequential"
    """`sequential` in one process, `mpi` ranks that sum their gradients, `shared` the same with
    parameters and optimizer state that they share, `gloo` PyTorch's DDP, `server` workers and
    parameter servers, `local` SGD that averages now and then, `zero` sharded state, `tensor` split
    layers, `pipeline` stages, `mesh` any of these together (what --mesh alone means)."""

    ranks: int | None = ruled(None, AT_LEAST_ONE)
    """Number of processes. Default: as many as the launcher started or the mesh has, else one a
    core."""

    threads: int | None = ruled(None, AT_LEAST_ONE)
    """Compute threads of each rank. Default: cores ÷ ranks of the node."""

    accumulate: int = ruled(1, AT_LEAST_ONE)
    """Micro-batches into which each rank splits its shard of a batch, to save memory."""

    bitwise: bool = False
    """Train to the same bits on any number of ranks: by `sequential`, `mpi`, `shared`, `zero` or
    `pipeline`, on one thread each, with a fixed cut into micro-batches and order of sums."""

    survive: bool = False
    """Go on without ranks that die, to the same bits: `mpi`, `zero` or `shared`, with Open MPI.
    Means --bitwise, too."""

    spares: int = ruled(0, NOT_NEGATIVE, SURVIVING)
    """Number of spare ranks, which wait, asleep, to take the places of those that die."""

    patience: float | None = ruled(None, POSITIVE, SURVIVING)
    """Kill a rank that keeps the others waiting for longer than these seconds, stopped or stuck,
    and go on without it. Default: --timeout-s ends the wait, and the run."""

    rebalance: bool = ruled(False, BITWISE)
    """Give ranks that are slow for long fewer micro-batches; the bits stay the same."""

    slow_rank: str | None = None
    """Makes a rank slower, as RANK:SECONDS a step, to see which ranks wait for it; in bitwise runs
    of an even share of the micro-batches."""

    def check_bitwise(self) -> None:
        """Raise UserError for what would make the bits depend on the number of ranks."""
        if not self.bitwise:
            return
        if self.threads not in (None, 1):
            raise UserError(
                f"--bitwise computes on one thread a rank, not on {self.threads}: sums within "
                "operations depend on their number; leave --threads out, and start more ranks"
            )
        if self.accumulate > 1:
            raise UserError(
                f"--bitwise cuts batches itself: give --micro-batches, not --accumulate "
                f"{self.accumulate}"
            )

    @property
    def uses_mpi(self) -> bool:
        return self.strategy not in WITHOUT_MPI


@dataclass(frozen=True, kw_only=True)
class CommunicationOptions:
    """Options of communication that all strategies have."""

    autocast: Autocast = "none"
    """Arithmetic of forward and backward passes where that is safe: `bf16`, or as --dtype."""

    trace: bool = False
    """Record what every rank does when, and write one trace of all for Perfetto."""


def parse_slow_rank(text: str) -> tuple[int, float]:
    """`1:0.02` → (1, 0.02). Raises: UserError for anything else."""
    rank, _, seconds = text.partition(":")
    try:
        parsed = int(rank), float(seconds)
    except ValueError:
        parsed = -1, -1.0
    if parsed[0] < 0 or not parsed[1] >= 0:
        raise UserError(f"--slow-rank {text} is not RANK:SECONDS, such as 1:0.02")
    return parsed


DatasetName = Literal["auto", "digits", "mnist", "fashion", "cifar10", "text"]
Readers = Literal["threads", "processes"]
Damaged = Literal["stop", "skip"]

PACKED = Needs("--data", lambda options: options.data is not None)
STAGED = Needs("--stage", lambda options: options.stage is not None)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of the data and of reading it."""

    dataset: DatasetName = "auto"
    """`mnist`, the embedded `digits` or `text`, `fashion` or `cifar10` where their files are, or
    `auto`: text for gpt, else mnist where it is found, digits otherwise."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    data: Path | None = None
    """A folder made by `phalanx data pack`, in place of --dataset: read while training goes on,
    and as large as one likes."""

    readers: int = ruled(2, NOT_NEGATIVE, PACKED)
    """--data: how many read ahead on each rank; 0: the rank itself reads when it needs a batch."""

    reader_kind: Readers = ruled("threads", PACKED)
    """--data: what reads ahead."""

    prefetch: int = ruled(4, AT_LEAST_ONE, PACKED)
    """--data: batches that may be ready before they are needed, on each rank."""

    cache_mb: float = ruled(0.0, NOT_NEGATIVE, PACKED)
    """--data: megabytes of samples that each rank keeps in memory once it has read them."""

    stage: Path | None = ruled(None, PACKED)
    """--data: folder on the node's own disk to which one rank of each node brings shards first."""

    stage_mb: float | None = ruled(None, POSITIVE, PACKED, STAGED)
    """--stage: megabytes that it may hold; shards that are needed last go. Default: no limit."""

    keep_staged: bool = ruled(False, PACKED, STAGED)
    """--stage: leave what was brought there for the next run. Default: it is removed."""

    shuffle_shards: int | None = ruled(None, POSITIVE, PACKED)
    """--data: number of shards to shuffle within, so that reading stays local. Default: all
    samples at random."""

    augment: bool = ruled(False, PACKED)
    """--data: shift and mirror training images at random, as the readers decode them."""

    damaged: Damaged = ruled("stop", PACKED)
    """--data: what to do with a corrupt sample: `stop` the run, or `skip` and count it."""

    train_samples: int | None = ruled(None, POSITIVE)
    """Number of training samples, the first ones of the data. Default: all."""

    validation_samples: int | None = ruled(None, POSITIVE)
    """Number of validation samples, the first ones of the data. Default: all."""

    final_train_samples: int | None = ruled(None, POSITIVE)
    """Number of training samples on which the final model is evaluated, too. Default: none."""

    @property
    def data_name(self) -> str:
        """Name of the data in logs and records."""
        return self.dataset if self.data is None else self.data.resolve().name

    def check_exclusions(self) -> None:
        """Raise UserError for options that exclude each other."""
        if self.data is not None and self.dataset != "auto":
            raise UserError(
                f"--data {self.data} and --dataset {self.dataset} exclude each other: "
                "give one of them"
            )
        if self.cache_mb and self.reader_kind == "processes":
            raise UserError(
                f"--cache-mb {self.cache_mb:g} and --reader-kind processes exclude each other: "
                "every process would keep samples of its own; take threads"
            )


OptimizerName = Literal["adam", "adamw", "sgd", "lars", "lamb"]
WarmUp = Literal["linear", "cosine", "constant"]
NonFinitePolicy = Literal["stop", "skip"]

STEP = Needs("--lr-schedule step", lambda options: options.lr_schedule == "step")
POLYNOMIAL = Needs("--lr-schedule polynomial", lambda options: options.lr_schedule == "polynomial")
WARM_UP = Needs("--warmup-epochs", lambda options: options.warmup_epochs > 0)
MOMENTUM = Needs("--optimizer sgd and lars", lambda options: options.optimizer in ("sgd", "lars"))
LARS = Needs("--optimizer lars", lambda options: options.optimizer == "lars")


PATHS = ("data_root", "data", "stage", "checkpoint_dir", "resume", "run_dir")

SCHEDULE = (
    "epochs", "lr", "lr_rule", "lr_schedule", "lr_milestones", "lr_factor", "lr_power",
    "warmup_epochs", "warmup",
)  # fmt: skip
"""Options that decide the learning rate of a step."""


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Options of the optimizer and the learning rate."""

    lr: float = ruled(1e-3, POSITIVE)
    """Learning rate at its highest, for the default batch."""

    lr_rule: LearningRateRule = "none"
    """Rule by which the learning rate follows the global batch: `none`, `linear` or `sqrt` of batch
    ÷ default batch."""

    lr_schedule: LearningRateSchedule = "cosine"
    """Course after the warm-up: `cosine` or `polynomial` fall to nothing by the last step, `step`
    falls at --lr-milestones, `constant` stays."""

    lr_milestones: tuple[float, ...] = ruled((0.5, 0.75), STEP)
    """`step`: after which parts of the run the rate is multiplied by --lr-factor."""

    lr_factor: float = ruled(0.1, POSITIVE, STEP)
    """`step`: by what."""

    lr_power: float = ruled(2.0, POSITIVE, POLYNOMIAL)
    """`polynomial`: the power of what is left of the run."""

    warmup_epochs: float = ruled(0.0, NOT_NEGATIVE)
    """Epochs in which the rate rises to its highest; may be a fraction. 0: none."""

    warmup: WarmUp = ruled("linear", WARM_UP)
    """Course of the rise: `linear` or `cosine` from nothing, `constant` at a tenth of it."""

    optimizer: OptimizerName = "adam"
    """The update rule. `lars` and `lamb` scale each layer's step by its weights' norm."""

    momentum: float = ruled(0.9, NOT_NEGATIVE, MOMENTUM)
    """Momentum of `sgd` and `lars`."""

    weight_decay: float = ruled(0.0, NOT_NEGATIVE)
    """Weight decay of the optimizer."""

    trust_coefficient: float = ruled(1e-3, POSITIVE, LARS)
    """`lars`: how large a layer's step may be, against its weights."""

    label_smoothing: float = ruled(0.0, BELOW_ONE)
    """Probability that training targets give to the other classes."""

    clip_norm: float | None = ruled(None, POSITIVE)
    """Scale the gradient down to this norm, over all parameters and ranks. Default: never."""

    bad_gradients: NonFinitePolicy = "stop"
    """Policy for a gradient that is not finite: `stop` the run, or `skip` the step. Both name a
    parameter, and the ranks whose loss is not finite."""


def check_milestones(milestones: tuple[float, ...]) -> None:
    """Raise UserError when they are not increasing parts of the run."""
    if not all(0 < part < 1 for part in milestones) or any(b <= a for a, b in pairwise(milestones)):
        raise UserError(
            "--lr-milestones must be parts of the run, between 0 and 1, each later than the one "
            f"before, not {' '.join(map(str, milestones))}"
        )
