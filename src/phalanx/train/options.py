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
    """Network: `mlp` (784-256-128-10), `cnn` (two convolutions), `rnn` (an LSTM over 28 rows),
    `resnet` (residual blocks), `gpt` (a transformer for text), or file.py:function, a function that
    returns your model."""

    loss: str | None = None
    """Your loss as file.py:function: takes (outputs, targets), returns the mean over the
    micro-batch. Default: cross entropy."""

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
    """Samples per update on each rank; the global batch size then grows with the ranks."""

    seed: int = ruled(0, NOT_NEGATIVE)
    """Seed of the initial weights and of the order of the samples."""

    dtype: DtypeName = "float32"
    """Precision of parameters and arithmetic."""

    device: str = "cpu"
    """Device of each rank: `cpu`, an accelerator by PyTorch's name, such as `cuda` or `xpu:1`, or
    `auto`: that of the local rank, if there is one. Several ranks: `mpi` and `zero`."""

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
    """Folder for a checkpoint after every epoch. Default: no checkpoints."""

    checkpoint_steps: int | None = ruled(None, AT_LEAST_ONE, SAVED)
    """Also write a checkpoint every this many steps. Default: after epochs only."""

    checkpoint_seconds: float | None = ruled(None, POSITIVE, SAVED)
    """Also write a checkpoint between steps when this many seconds have passed since the last."""

    keep_checkpoints: int | None = ruled(None, AT_LEAST_ONE, SAVED)
    """Newest valid checkpoints to keep. Default: all after epochs, and two within an epoch."""

    checkpoint_thread: bool = ruled(True, SAVED)
    """Write a copy of the state in a thread while training continues; else training waits."""

    resume: Path | None = None
    """Resume from this checkpoint, or from the newest complete one in this folder; `auto`: from the
    newest valid one in --checkpoint-dir, or start anew if there is none."""

    restart_schedule: bool = ruled(False, RESUMED)
    """--resume: restart the schedule of the learning rate over the remaining epochs."""

    allow_changes: bool = ruled(False, RESUMED)
    """--resume: continue even if data, batch or other options differ from the checkpoint's."""

    run_dir: Path | None = None
    """Folder of the run's records. Default: a new one under runs/train."""

    grace_s: float = ruled(DEFAULT_STOP_S, POSITIVE, SAVED)
    """Seconds after SIGTERM for ranks to save a checkpoint and stop, before they are killed."""

    timeout_s: float = ruled(300.0, POSITIVE)
    """Fail if ranks have waited this many seconds for each other, and name the missing ranks."""


Autocast = Literal["none", "bf16"]

SURVIVING = Needs("--survive", lambda options: options.survive)
BITWISE = Needs("--bitwise or --survive", lambda options: options.bitwise or options.survive)

WITHOUT_MPI: tuple[StrategyName, ...] = ("sequential", "gloo")


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Options of the parallelism that all strategies have."""

    strategy: StrategyName = "sequential"
    """`sequential` (one process), `mpi` (ranks sum gradients), `shared` (mpi with parameters and
    optimizer state in shared memory), `gloo` (PyTorch's DDP), `server` (workers and parameter
    servers), `local` (SGD with periodic averaging), `zero` (sharded state), `tensor` (split
    layers), `pipeline` (stages), or `mesh` (a combination of these; --mesh implies it)."""

    ranks: int | None = ruled(None, AT_LEAST_ONE)
    """Number of processes. Default: that of the launcher or of the mesh, else one per core."""

    threads: int | None = ruled(None, AT_LEAST_ONE)
    """Compute threads of each rank. Default: cores ÷ ranks of the node."""

    accumulate: int = ruled(1, AT_LEAST_ONE)
    """Micro-batches into which each rank splits its shard of a batch, to save memory."""

    bitwise: bool = False
    """Train to identical bits on any number of ranks (`sequential`, `mpi`, `shared`, `zero`,
    `pipeline`): one thread per rank, fixed micro-batches and a fixed order of sums."""

    survive: bool = False
    """Continue without ranks that die, to identical bits (`mpi`, `zero` or `shared`; Open MPI).
    Implies --bitwise."""

    spares: int = ruled(0, NOT_NEGATIVE, SURVIVING)
    """Number of spare ranks, which sleep until they replace a rank that died."""

    patience: float | None = ruled(None, POSITIVE, SURVIVING)
    """Kill a stopped or stuck rank after its peers have waited this many seconds for it, and
    continue without it. Default: --timeout-s ends the wait and the run."""

    rebalance: bool = ruled(False, BITWISE)
    """Give fewer micro-batches to ranks that stay slow; the bits do not change."""

    slow_rank: str | None = None
    """Slow a rank down by RANK:SECONDS per step, to see which ranks wait for it; in bitwise runs,
    per equal share of the micro-batches."""

    def check_bitwise(self) -> None:
        """Raise UserError for what would make the bits depend on the number of ranks."""
        if not self.bitwise:
            return
        if self.threads not in (None, 1):
            raise UserError(
                f"--bitwise uses one thread per rank, not {self.threads}, since their number "
                "changes sums within operations: leave --threads out, and start more ranks"
            )
        if self.accumulate > 1:
            raise UserError(
                "--bitwise splits batches by --micro-batches: use that in place of --accumulate "
                f"{self.accumulate}"
            )

    @property
    def uses_mpi(self) -> bool:
        return self.strategy not in WITHOUT_MPI


@dataclass(frozen=True, kw_only=True)
class CommunicationOptions:
    """Options of communication that all strategies have."""

    autocast: Autocast = "none"
    """Autocast of forward and backward passes: `bf16` for the operations where that is safe."""

    trace: bool = False
    """Record what every rank does when, and write one trace of all ranks for Perfetto."""


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
    """Data set: the embedded `digits` or `text`, or `mnist`, `fashion` or `cifar10` (files needed),
    or `auto`: text for gpt, else mnist if it is found and digits if not."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    data: Path | None = None
    """Folder made by `phalanx data pack`, in place of --dataset; read during training, so it may be
    larger than memory."""

    readers: int = ruled(2, NOT_NEGATIVE, PACKED)
    """--data: readers that read ahead on each rank; 0: the rank reads each batch when needed."""

    reader_kind: Readers = ruled("threads", PACKED)
    """--data: kind of the readers."""

    prefetch: int = ruled(4, AT_LEAST_ONE, PACKED)
    """--data: batches that each rank reads ahead at most."""

    cache_mb: float = ruled(0.0, NOT_NEGATIVE, PACKED)
    """--data: size of each rank's cache of read samples, in megabytes."""

    stage: Path | None = ruled(None, PACKED)
    """--data: folder on the node's disk, to which one rank per node copies shards first."""

    stage_mb: float | None = ruled(None, POSITIVE, PACKED, STAGED)
    """--stage: megabytes it may hold; shards needed last are removed first. Default: no limit."""

    keep_staged: bool = ruled(False, PACKED, STAGED)
    """--stage: leave the copied shards for the next run. Default: they are removed."""

    shuffle_shards: int | None = ruled(None, POSITIVE, PACKED)
    """--data: shuffle within this many shards at a time, so that reads stay local. Default: shuffle
    all samples."""

    augment: bool = ruled(False, PACKED)
    """--data: shift and mirror training images at random, when readers decode them."""

    damaged: Damaged = ruled("stop", PACKED)
    """--data: what to do with a corrupt sample: `stop` the run, or `skip` and count it."""

    train_samples: int | None = ruled(None, POSITIVE)
    """Use only this many training samples, from the start of the data. Default: all."""

    validation_samples: int | None = ruled(None, POSITIVE)
    """Use only this many validation samples, from the start of the data. Default: all."""

    final_train_samples: int | None = ruled(None, POSITIVE)
    """Also evaluate the final model on this many training samples. Default: none."""

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
                f"--cache-mb {self.cache_mb:g} and --reader-kind processes exclude each other, "
                "since each process would have a separate cache: use threads"
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
    """Peak learning rate, for the default batch size."""

    lr_rule: LearningRateRule = "none"
    """Scaling of the learning rate with the global batch size: `none`, `linear` or `sqrt` of batch
    ÷ default batch."""

    lr_schedule: LearningRateSchedule = "cosine"
    """Decay after the warm-up: `cosine` or `polynomial` to 0 at the last step, `step` at
    --lr-milestones, or `constant`."""

    lr_milestones: tuple[float, ...] = ruled((0.5, 0.75), STEP)
    """`step`: fractions of the run after which the rate is multiplied by --lr-factor."""

    lr_factor: float = ruled(0.1, POSITIVE, STEP)
    """`step`: factor of the rate at each milestone."""

    lr_power: float = ruled(2.0, POSITIVE, POLYNOMIAL)
    """`polynomial`: exponent of the remaining fraction of the run."""

    warmup_epochs: float = ruled(0.0, NOT_NEGATIVE)
    """Length of the warm-up in epochs; may be a fraction. 0: no warm-up."""

    warmup: WarmUp = ruled("linear", WARM_UP)
    """Shape of the warm-up: `linear` or `cosine` from 0, or `constant` at a tenth of the peak."""

    optimizer: OptimizerName = "adam"
    """Update rule. `lars` and `lamb` scale each layer's step by the norm of its weights."""

    momentum: float = ruled(0.9, NOT_NEGATIVE, MOMENTUM)
    """Momentum of `sgd` and `lars`."""

    weight_decay: float = ruled(0.0, NOT_NEGATIVE)
    """Weight decay of the optimizer."""

    trust_coefficient: float = ruled(1e-3, POSITIVE, LARS)
    """`lars`: size of a layer's step relative to the norm of its weights."""

    label_smoothing: float = ruled(0.0, BELOW_ONE)
    """Label smoothing: probability that training targets spread over the other classes."""

    clip_norm: float | None = ruled(None, POSITIVE)
    """Clip the gradient to this norm, over all parameters and ranks. Default: no clipping."""

    bad_gradients: NonFinitePolicy = "stop"
    """Policy for gradients with NaN or Inf: `stop` the run, or `skip` the step. Both name a
    parameter, and the ranks whose loss is NaN or Inf."""


def check_milestones(milestones: tuple[float, ...]) -> None:
    """Raise UserError when they are not increasing parts of the run."""
    if not all(0 < part < 1 for part in milestones) or any(b <= a for a, b in pairwise(milestones)):
        raise UserError(
            "--lr-milestones must be increasing fractions of the run, between 0 and 1, not "
            f"{' '.join(map(str, milestones))}"
        )
