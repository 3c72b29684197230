"""Tar files in the manner of WebDataset, several members of a sample being inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from phalanx.data.packing.origin import OriginOptions, fingerprint_of
from phalanx.data.packing.record_origin import Part, RecordOrigin
from phalanx.data.packing.tar_archives import TarArchives
from phalanx.data.packing.tar_members import Member
from phalanx.data.packing.tfrecord_files import image_or_text


class TarRecords(RecordOrigin):
    """Members are arrays (`.npy`), images or text; each input is a field of its own."""

    def __init__(self, paths: Sequence[Path], options: OriginOptions) -> None:
        """Reads all that is packed.

        Raises: UserError for a damaged archive, an unsafe member, or a sample without its parts.
        """
        super().__init__()
        self._archives = TarArchives(paths)
        self._samples = self._archives.samples()
        self.skipped = self._archives.skipped
        self.text = str(paths[0] if len(paths) == 1 else paths[0].parent)
        self.fingerprint = fingerprint_of(paths)
        target = None if options.target is None else _ending(options.target)
        inputs = tuple(map(_ending, options.inputs))
        named = dataclasses.replace(options, inputs=inputs, target=target)
        self._scan(len(self._samples), named)

    def record(self, number: int) -> Mapping[str, Member]:
        return self._samples[number]

    def part(self, value: Member, where: str) -> Part:
        if value.name.lower().endswith("npy"):
            return self._archives.array(value)
        return image_or_text(self._archives.content(value), where)

    def field_name(self, part: str) -> str:
        return PurePosixPath(part).stem.replace(".", "_")

    def where(self, number: int) -> str:
        return self._archives.where(next(iter(self._samples[number].values())))

    def close(self) -> None:
        self._archives.close()


def _ending(name: str) -> str:
    return name.lstrip(".").lower()
