"""Tar files in the manner of WebDataset: the members of a sample in a row, KEY.ENDING each."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from phalanx.data.packed.index import Field
from phalanx.data.packed.shard_writers import Sample
from phalanx.data.packing.image_form import ImageForm, choose_form, peek
from phalanx.data.packing.origin import Numbers, Wanted, fingerprint_of
from phalanx.data.packing.targets import labelled
from phalanx.errors import UserError

_USUAL_INPUTS = ("inputs.npy", "inputs.png", "inputs.jpg", "png", "jpg", "jpeg", "webp", "npy")
_USUAL_TARGETS = ("targets.npy", "cls", "label", "txt")


class Member(NamedTuple):
    file: int
    name: str
    offset: int
    size: int


class TarFiles:
    """Members are read where they lie; nothing is unpacked to disk, nothing unpickled."""

    def __init__(self, paths: Sequence[Path], wanted: Wanted) -> None:
        """Reads all headers and targets, and the sizes of images.

        Raises: UserError for a damaged archive, an unsafe member, or a sample without its parts.
        """
        self._paths = list(paths)
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        samples = [sample for i, path in enumerate(paths) for sample in _samples(i, path)]
        if not samples:
            raise UserError(f"{paths[0]} holds no samples")
        inputs, target = self._endings(samples[0], wanted)
        for sample in samples:
            for ending in (inputs, target):
                if ending not in sample:
                    member = next(iter(sample.values()))
                    raise UserError(
                        f"{self._where(member)}: its sample has no member .{ending}, only "
                        f"{', '.join(sorted(sample))}"
                    )
        self._members = [sample[inputs] for sample in samples]
        values = [self._target_value(sample[target]) for sample in samples]
        self.targets, self.classes = labelled(np.array(values))
        self._form, field = self._input_form(inputs, wanted)
        shape = list(self.targets.shape[1:])
        self.fields = [field, Field(name="targets", dtype=self.targets.dtype.name, shape=shape)]
        self.text = f"{paths[0] if len(paths) == 1 else paths[0].parent}, .{inputs} and .{target}"
        self.fingerprint = fingerprint_of(paths)
        self.chunks = [range(len(samples))]
        self.validation: Numbers | None = None

    def read(self, numbers: Numbers) -> list[Sample]:
        targets = self.targets[numbers]
        return [
            {"inputs": self._packed(self._members[number]), "targets": targets[i, ...]}
            for i, number in enumerate(numbers.tolist())
        ]

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []

    def _packed(self, member: Member) -> Any:
        if self._form is not None:
            return self._form.packed(self._content(member), self._where(member))
        return self._array(member)

    def _content(self, member: Member) -> bytes:
        content = os.pread(self._files[member.file], member.size, member.offset)
        if len(content) < member.size:
            raise UserError(f"{self._where(member)} is cut off: the archive is truncated")
        return content

    def _array(self, member: Member) -> Any:
        try:
            array = np.load(io.BytesIO(self._content(member)), allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise UserError(f"{self._where(member)} is no array: {error}") from error
        return np.ascontiguousarray(array).reshape(np.shape(array))

    def _target_value(self, member: Member) -> Any:
        if member.name.endswith(".npy"):
            return self._array(member)
        try:
            text = self._content(member).decode().strip()
        except UnicodeDecodeError:
            raise UserError(f"{self._where(member)} is neither text nor an array") from None
        return int(text) if text.lstrip("-").isdecimal() else text

    def _input_form(self, ending: str, wanted: Wanted) -> tuple[ImageForm | None, Field]:
        if not ending.endswith("npy"):
            peeks = (peek(self._content(m), self._where(m)) for m in self._members)
            form = choose_form(peeks, wanted)
            return form, form.field
        arrays = (self._array(member) for member in self._members)
        kinds = {(array.dtype.newbyteorder("=").name, array.shape) for array in arrays}
        dtypes, shapes = {dtype for dtype, _ in kinds}, {shape for _, shape in kinds}
        if len(dtypes) > 1:
            raise UserError(f"{self._paths[0]}: arrays .{ending} of {', '.join(sorted(dtypes))}")
        shape = list(shapes.pop()) if len(shapes) == 1 else None
        return None, Field(name="inputs", dtype=dtypes.pop(), shape=shape)

    def _endings(self, sample: dict[str, Member], wanted: Wanted) -> tuple[str, str]:
        """Of the members that are inputs and target."""
        inputs = wanted.inputs[0] if wanted.inputs else _first(_USUAL_INPUTS, sample)
        target = wanted.target or _first(_USUAL_TARGETS, sample)
        if inputs is None or target is None or len(wanted.inputs) > 1:
            raise UserError(
                f"which members of {self._paths[0]} are wanted? name one ending each with --inputs "
                f"and --target: {', '.join(sorted(sample))}"
            )
        return inputs.lstrip("."), target.lstrip(".")

    def _where(self, member: Member) -> str:
        return f"{self._paths[member.file]}: {member.name} at byte {member.offset}"


def _samples(number: int, path: Path) -> Iterator[dict[str, Member]]:
    """Members by ending, of one sample after the other.

    Raises: UserError for a damaged archive, or a member that is no file or leaves its folder.
    """
    key, sample = "", dict[str, Member]()
    try:
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                if info.isdir():
                    continue
                _check(path, info)
                stem, _, ending = PurePosixPath(info.name).name.partition(".")
                full_key = str(PurePosixPath(info.name).parent / stem)
                if sample and full_key != key:
                    yield sample
                    sample = {}
                key = full_key
                sample[ending] = Member(number, info.name, info.offset_data, info.size)
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} is not a tar, or damaged: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if sample:
        yield sample


def _check(path: Path, info: tarfile.TarInfo) -> None:
    name = PurePosixPath(info.name)
    if name.is_absolute() or ".." in name.parts:
        raise UserError(f"{path} is refused: its member {info.name!r} leaves the folder")
    if not info.isreg() or info.issparse():
        raise UserError(f"{path} is refused: its member {info.name!r} is a link or no plain file")


def _first(usual: tuple[str, ...], sample: dict[str, Member]) -> str | None:
    return next((ending for ending in usual if ending in sample), None)
