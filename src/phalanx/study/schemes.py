"""The ways to split one training that the parallelism study compares, as options of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from phalanx.models.options import ModelName

SchemeName = Literal[
    "sequential",
    "mpi",
    "library",
    "ring",
    "tree",
    "halving",
    "naive",
    "shared",
    "gloo",
    "server",
    "server-asynchronous",
    "server-bounded",
    "two-servers",
    "local",
    "local-nesterov",
    "zero-1",
    "zero-2",
    "zero-3",
    "zero-3-gloo",
    "tensor",
    "gpipe",
    "1f1b",
    "interleaved",
    "zero-bubble",
    "dp2-tp2",
    "dp2-pp2",
    "tp2-pp2",
    "shard2-tp2",
]
CHAINS: tuple[ModelName, ...] = ("mlp", "gpt")
"""Models that can be cut into stages and along their layers."""


@dataclass(frozen=True, kw_only=True)
class StudyScheme:
    options: Mapping[str, object]  # of `TrainConfig`
    is_leading: bool = False
    """Compared at every number of ranks; the others, in a quick study, at the largest alone."""
    ranks: int | None = None
    """The one number of ranks that it is for."""
    leads_for: tuple[ModelName, ...] = field(default=("mlp", "cnn", "rnn", "resnet"))
    """Models that it is tried on when none of the schemes is asked for by name."""


def _mpi(method: str) -> StudyScheme:
    return StudyScheme(options={"strategy": "mpi", "all_reduce": method})


def _server(mode: str, **more: object) -> StudyScheme:
    return StudyScheme(options={"strategy": "server", "server_mode": mode, **more})


def _zero(stage: int, *, is_leading: bool = False, **more: object) -> StudyScheme:
    options = {"strategy": "zero", "zero_stage": stage, **more}
    return StudyScheme(options=options, is_leading=is_leading)


def _pipeline(schedule: str, *, is_leading: bool = False) -> StudyScheme:
    options = {"strategy": "pipeline", "pipeline_schedule": schedule}
    return StudyScheme(options=options, is_leading=is_leading, leads_for=("gpt",))


def _mesh(axes: str, *, leads_for: tuple[ModelName, ...]) -> StudyScheme:
    return StudyScheme(options={"mesh": axes}, ranks=4, leads_for=leads_for)


SCHEMES: Mapping[SchemeName, StudyScheme] = {
    "sequential": StudyScheme(options={"strategy": "sequential"}, ranks=1, is_leading=True,
                              leads_for=(*CHAINS, "cnn", "rnn", "resnet")),
    "mpi": StudyScheme(options={"strategy": "mpi"}, is_leading=True,
                       leads_for=(*CHAINS, "cnn", "rnn", "resnet")),
    "library": _mpi("library"),
    "ring": _mpi("ring"),
    "tree": _mpi("tree"),
    "halving": _mpi("halving"),
    "naive": _mpi("naive"),
    "shared": StudyScheme(options={"strategy": "shared"}, is_leading=True),
    "gloo": StudyScheme(options={"strategy": "gloo"}, is_leading=True),
    "server": _server("synchronous"),
    "server-asynchronous": _server("asynchronous"),
    "server-bounded": _server("bounded", staleness=2),
    "two-servers": _server("synchronous", servers=2),
    "local": StudyScheme(options={"strategy": "local"}, is_leading=True),
    "local-nesterov": StudyScheme(options={"strategy": "local", "outer_optimizer": "nesterov"}),
    "zero-1": _zero(1),
    "zero-2": _zero(2),
    "zero-3": _zero(3, is_leading=True),
    "zero-3-gloo": _zero(3, backend="gloo"),
    "tensor": StudyScheme(options={"strategy": "tensor"}, is_leading=True, leads_for=CHAINS),
    "gpipe": _pipeline("gpipe"),
    "1f1b": _pipeline("1f1b", is_leading=True),
    "interleaved": _pipeline("interleaved"),
    "zero-bubble": _pipeline("zero-bubble"),
    "dp2-tp2": _mesh("dp=2,tp=2", leads_for=CHAINS),
    "dp2-pp2": _mesh("dp=2,pp=2", leads_for=("gpt",)),
    "tp2-pp2": _mesh("tp=2,pp=2", leads_for=("gpt",)),
    "shard2-tp2": _mesh("shard=2,tp=2", leads_for=CHAINS),
}  # fmt: skip
