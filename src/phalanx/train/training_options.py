"""Options of the model, of the length of training, and of checkpoints. No torch, no MPI.

Annotations here are objects, not strings: see `parallel_options.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phalanx.jobs.job import DEFAULT_STOP_S
from phalanx.models.options import ModelName, ModelOptions
from phalanx.parallel.option_groups import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Needs, ruled

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
