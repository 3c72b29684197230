"""Tar files in the manner of WebDataset: the members of a sample in a row, KEY.ENDING each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packing.image_form import ImageForm, choose_form, peek
from phalanx.data.packing.origin import (
    ChunkedOrigin,
    OriginOptions,
    SkippedItems,
    fingerprint_of,
    targets_field,
)
from phalanx.data.packing.tar_archives import TarArchives
from phalanx.data.packing.tar_members import Member
from phalanx.data.packing.targets import TargetLocations, labelled, parse_targets
from phalanx.errors import UserError

_USUAL_INPUTS = ("inputs.npy", "inputs.png", "inputs.jpg", "png", "jpg", "jpeg", "webp", "npy")
_USUAL_TARGETS = ("targets.npy", "cls", "label", "txt")


MAX_TARGET_BYTES = 2**16
"""Of one that is text."""


class TarFiles(ChunkedOrigin):
    """Members are read where they lie; nothing is unpacked to disk, nothing unpickled."""

    def __init__(self, paths: Sequence[Path], options: OriginOptions) -> None:
        """Reads all headers and targets, and the sizes of images.

        Raises: UserError for a damaged archive, an unsafe member, or a sample without its parts.
        """
        super().__init__()
        self._paths, self._archives = list(paths), TarArchives(paths)
        samples = self._archives.samples()
        inputs, target = self._endings(samples[0], options)
        for sample in samples:
            for ending in (inputs, target):
                if ending not in sample:
                    member = next(iter(sample.values()))
                    raise UserError(
                        f"{self._archives.where(member)}: its sample has no member .{ending}, only "
                        f"{', '.join(sorted(sample))}"
                    )
        self._members = [sample[inputs] for sample in samples]
        self.skipped = [*self._archives.skipped, *_unused(samples, (inputs, target))]
        members = [sample[target] for sample in samples]
        locations = TargetLocations(str(paths[0]), lambda i: self._archives.where(members[i]))
        values = self._target_values(members, locations)
        self.targets, self.classes = labelled(values, locations, options.classes)
        self._form, field = self._input_form(inputs, options)
        self.notes = self._form.notes if self._form else []
        self.fields = [field, targets_field(self.targets)]
        self.text = f"{paths[0] if len(paths) == 1 else paths[0].parent}, .{inputs} and .{target}"
        self.fingerprint = fingerprint_of(paths)
        self.chunks = [range(len(samples))]

    def read_chunk(self, chunk: int) -> Sequence[Member]:  # noqa: ARG002
        return self._members

    def close(self) -> None:
        self._archives.close()

    def pack_item(self, item: Member, number: int) -> NDArray[Any] | bytes:  # noqa: ARG002
        if self._form is not None:
            return self._form.packed(self._archives.content(item), self._archives.where(item))
        return self._archives.array(item)

    def _target_values(self, members: Sequence[Member], locations: TargetLocations) -> NDArray[Any]:
        if not members[0].name.lower().endswith(".npy"):
            return parse_targets([self._text(member) for member in members], locations)
        first = self._archives.array(members[0])
        arrays = []
        for member in members:
            array = self._archives.array(member)
            if (array.dtype, array.shape) != (first.dtype, first.shape):
                raise UserError(
                    f"{self._archives.where(member)} is {array.dtype} of {array.shape}, the first "
                    f"target {first.dtype} of {first.shape}"
                )
            arrays.append(array)
        return np.stack(arrays)

    def _text(self, member: Member) -> str:
        if member.size > MAX_TARGET_BYTES:
            raise UserError(
                f"{self._archives.where(member)} is no target: it has {member.size:,} bytes"
            )
        try:
            return self._archives.content(member).decode()
        except UnicodeDecodeError:
            raise UserError(
                f"{self._archives.where(member)} is neither text nor an array"
            ) from None

    def _input_form(self, ending: str, options: OriginOptions) -> tuple[ImageForm | None, Field]:
        if not ending.endswith("npy"):
            peeks = (
                peek(self._archives.content(m), self._archives.where(m)) for m in self._members
            )
            form = choose_form(peeks, options)
            return form, form.field
        arrays = (self._archives.array(member) for member in self._members)
        kinds = {(array.dtype.newbyteorder("=").name, array.shape) for array in arrays}
        dtypes, shapes = {dtype for dtype, _ in kinds}, {shape for _, shape in kinds}
        if len(dtypes) > 1:
            raise UserError(f"{self._paths[0]}: arrays .{ending} of {', '.join(sorted(dtypes))}")
        shape = list(shapes.pop()) if len(shapes) == 1 else None
        return None, Field(name="inputs", dtype=dtypes.pop(), shape=shape)

    def _endings(self, sample: dict[str, Member], options: OriginOptions) -> tuple[str, str]:
        """Return the endings of the members that are inputs and target."""
        inputs = options.inputs[0] if options.inputs else _first(_USUAL_INPUTS, sample)
        target = options.target or _first(_USUAL_TARGETS, sample)
        if inputs is None or target is None:
            raise UserError(
                f"which members of {self._paths[0]} are wanted? name one ending each with --inputs "
                f"and --target: {', '.join(sorted(sample))}"
            )
        return inputs.lstrip(".").lower(), target.lstrip(".").lower()


def _unused(samples: Sequence[Mapping[str, Member]], used: Sequence[str]) -> list[SkippedItems]:
    """Members that are neither inputs nor targets, by ending."""
    groups: dict[str, SkippedItems] = {}
    for sample in samples:
        for ending, member in sample.items():
            if ending not in used:
                reason = f"members .{ending}, neither inputs nor targets"
                groups.setdefault(ending, SkippedItems(reason)).add(member.name)
    return list(groups.values())


def _first(usual: tuple[str, ...], sample: dict[str, Member]) -> str | None:
    return next((ending for ending in usual if ending in sample), None)
