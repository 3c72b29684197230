"""The ways to split one training that the parallelism study compares, as options of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.models.options import ModelName

CHAINS: tuple[ModelName, ...] = ("mlp", "gpt")
"""Models that can be cut into stages and along their layers."""
IMAGES: tuple[ModelName, ...] = ("mlp", "cnn", "rnn", "resnet")
ALL: tuple[ModelName, ...] = (*IMAGES, "gpt")


@dataclass(frozen=True, kw_only=True)
class StudyScheme:
    options: Mapping[str, object]  # of `TrainConfig`
    is_leading: bool
    """Compared at every number of ranks; the others, in a quick study, at the largest alone."""
    ranks: int | None
    """The one number of ranks that it is for."""
    leads_for: tuple[ModelName, ...]
    """Models that it is tried on when none of the schemes is asked for by name."""


def _on(
    models: tuple[ModelName, ...] = IMAGES,
    *,
    leads: bool = False,
    only_ranks: int | None = None,
    **options: object,
) -> StudyScheme:
    return StudyScheme(options=options, is_leading=leads, ranks=only_ranks, leads_for=models)


SCHEMES: Mapping[str, StudyScheme] = {
    "sequential": _on(ALL, leads=True, only_ranks=1, strategy="sequential"),
    "mpi": _on(ALL, leads=True, strategy="mpi"),
    **{
        method: _on(strategy="mpi", all_reduce=method)
        for method in ("library", "ring", "tree", "halving", "naive")
    },
    "shared": _on(leads=True, strategy="shared"),
    "gloo": _on(leads=True, strategy="gloo"),
    "server": _on(strategy="server", server_mode="synchronous"),
    "server-asynchronous": _on(strategy="server", server_mode="asynchronous"),
    "server-bounded": _on(strategy="server", server_mode="bounded", staleness=2),
    "two-servers": _on(strategy="server", server_mode="synchronous", servers=2),
    "local": _on(leads=True, strategy="local"),
    "local-nesterov": _on(strategy="local", outer_optimizer="nesterov"),
    "zero-1": _on(strategy="zero", zero_stage=1),
    "zero-2": _on(strategy="zero", zero_stage=2),
    "zero-3": _on(leads=True, strategy="zero", zero_stage=3),
    "zero-3-gloo": _on(strategy="zero", zero_stage=3, backend="gloo"),
    "tensor": _on(CHAINS, leads=True, strategy="tensor"),
    **{
        schedule: _on(
            ("gpt",), leads=schedule == "1f1b", strategy="pipeline", pipeline_schedule=schedule
        )
        for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble")
    },
    "dp2-tp2": _on(CHAINS, only_ranks=4, mesh="dp=2,tp=2"),
    "dp2-pp2": _on(("gpt",), only_ranks=4, mesh="dp=2,pp=2"),
    "tp2-pp2": _on(("gpt",), only_ranks=4, mesh="tp=2,pp=2"),
    "shard2-tp2": _on(CHAINS, only_ranks=4, mesh="shard=2,tp=2"),
}
