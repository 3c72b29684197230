"""Options of reading a pack for training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from phalanx.data.reading.prefetch import ReaderKind
from phalanx.data.sources.pack_description import TRAIN, PackDescription, describe
from phalanx.errors import UserError


@dataclass(frozen=True)
class Packed:
    """A folder of `phalanx data pack` whose samples are prepared for training: images decoded and
    normalised, tokens and classes int64.

        images = phalanx.Packed("images.pack", readers=4, cache_mb=200, augment=True)
        run = phalanx.start(network, its_optimizer, images, batch_size=256, epochs=1)
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))
        run.evaluate(lambda model, batch: criterion(model(batch[0]), batch[1]), images)

    Raises:
        UserError: For a value that is none of its option's.
    """

    folder: Path | str
    readers: int = field(default=2, kw_only=True)
    """Number that read ahead on each rank; 0: the rank itself reads when it needs a batch."""
    reader_kind: ReaderKind = field(default="threads", kw_only=True)
    """Kind of readers."""
    prefetch: int = field(default=4, kw_only=True)
    """Micro-batches that may be ready before they are needed, on each rank."""
    cache_mb: float = field(default=0.0, kw_only=True)
    """Megabytes of samples that each rank keeps in memory once it has read them."""
    stage: Path | str | None = field(default=None, kw_only=True)
    """Folder on the node's own disk to which one rank of each node brings shards first."""
    stage_mb: float | None = field(default=None, kw_only=True)
    """Megabytes that it may hold; shards that are needed last go. None: no limit."""
    keep_staged: bool = field(default=False, kw_only=True)
    """Leave what was brought there for the next run."""
    shuffle_shards: int | None = field(default=None, kw_only=True)
    """Number of shards to shuffle within, so that reading stays local; None: all samples."""
    augment: bool = field(default=False, kw_only=True)
    """Shift and mirror training images at random, by (seed, epoch, sample)."""
    damaged: Literal["stop", "skip"] = field(default="stop", kw_only=True)
    """Policy for a corrupt sample: stop the run, or leave it out and count it."""
    train_samples: int | None = field(default=None, kw_only=True)
    """Number of training samples, the first ones; None: all."""
    validation_samples: int | None = field(default=None, kw_only=True)
    """Number of validation samples, the first ones; None: all."""
    dtype: str = field(default="float32", kw_only=True)
    """Type of prepared inputs and of targets that are quantities."""

    def __post_init__(self) -> None:
        least = {"readers": 0, "prefetch": 1, "shuffle_shards": 1, "train_samples": 1}
        for name, first in {**least, "validation_samples": 1}.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < first):
                raise UserError(f"Packed({name}={value!r}): it is no whole number from {first}")
        for name, values in {
            "reader_kind": ("threads", "processes"), "damaged": ("stop", "skip"),
            "dtype": ("float32", "float64"),
        }.items():  # fmt: skip
            if getattr(self, name) not in values:
                value = getattr(self, name)
                raise UserError(f"Packed({name}={value!r}): it is none of {', '.join(values)}")
        for name in ("cache_mb", "stage_mb"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (int, float)) or value < 0):
                raise UserError(f"Packed({name}={value!r}): it is no number from 0")
        if self.cache_mb and self.reader_kind == "processes":
            raise UserError(
                f'Packed(cache_mb={self.cache_mb:g}, reader_kind="processes"): every process would '
                "keep samples of its own; take threads"
            )
        if self.stage is None and (self.stage_mb is not None or self.keep_staged):
            given = "keep_staged" if self.keep_staged else "stage_mb"
            raise UserError(f"Packed({given}=…) is for a stage: give stage=, the folder, too")

    def describe(self) -> PackDescription:
        """Return what the pack's index says. Raises: UserError where there is no such pack."""
        try:
            described = describe(Path(self.folder))
        except UserError as error:
            raise UserError(str(error).replace("--data ", "Packed: ")) from error
        if self.augment and not described.shape.is_image:
            raise UserError("Packed(augment=True) shifts and mirrors images: leave it out")
        return described

    def num_samples(self, described: PackDescription, split: str) -> int:
        """Return how many samples of a split are read. Raises: UserError where there are fewer."""
        is_train = split == TRAIN
        wanted = self.train_samples if is_train else self.validation_samples
        there = described.num_train if is_train else described.num_validation
        if wanted is not None and wanted > there:
            option = "--train-samples" if is_train else "--validation-samples"
            raise UserError(f"{option} must be 1 to {there} for this data, not {wanted}")
        return wanted or there
