"""Refusal of options that the run would ignore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phalanx.errors import UserError
from phalanx.parallel.mesh import Mesh
from phalanx.train.config import TrainConfig
from phalanx.train.parallel_options import MESH_STRATEGIES, option


@dataclass(frozen=True)
class OptionScope:
    """Options, and the runs that read them."""

    names: tuple[str, ...]
    where: str
    """As the user reads it."""
    applies: Callable[[TrainConfig, Mesh], bool]


OPTION_SCOPES = (
    OptionScope(
        ("zero_stage",),
        "--strategy zero and meshes with shard",
        lambda config, mesh: config.strategy == "zero" or mesh.shard > 1,
    ),
    OptionScope(
        ("backend",),
        "--strategy zero, tensor, pipeline and mesh (PyTorch's DDP on Gloo is --strategy gloo)",
        lambda config, _: config.strategy in MESH_STRATEGIES,
    ),
    OptionScope(
        ("sequence_parallel",),
        "--model gpt with --strategy tensor or a mesh with tp",
        lambda config, mesh: config.model == "gpt" and (config.strategy == "tensor" or mesh.tp > 1),
    ),
    OptionScope(
        ("pipeline_schedule", "micro_batches", "stages_per_rank"),
        "--strategy pipeline and meshes with pp",
        lambda config, mesh: config.strategy == "pipeline" or mesh.pp > 1,
    ),
    OptionScope(
        ("servers", "server_mode", "staleness"),
        "--strategy server",
        lambda config, _: config.strategy == "server",
    ),
    OptionScope(
        ("local_steps", "outer_optimizer", "outer_lr", "outer_momentum"),
        "--strategy local",
        lambda config, _: config.strategy == "local",
    ),
    OptionScope(
        ("all_reduce", "compress", "overlap", "bucket_mb", "link"),
        "--strategy mpi",
        lambda config, _: config.strategy == "mpi",
    ),
    OptionScope(
        ("autocast",),
        "strategies and meshes without pipelines",
        lambda config, mesh: config.strategy != "pipeline" and mesh.pp == 1,
    ),
    OptionScope(
        ("all_reduce",),
        "gradients that are not compressed",
        lambda config, _: config.compress == "none",
    ),
    OptionScope(
        ("bucket_mb",),
        "gradients that overlap or are compressed, not for --overlap off without --compress",
        lambda config, _: config.overlap != "off" or config.compress != "none",
    ),
    OptionScope(
        ("powersgd_rank",), "--compress powersgd", lambda config, _: config.compress == "powersgd"
    ),
    OptionScope(("topk_fraction",), "--compress topk", lambda config, _: config.compress == "topk"),
    OptionScope(
        ("lr_milestones", "lr_factor"),
        "--lr-schedule step",
        lambda config, _: config.lr_schedule == "step",
    ),
    OptionScope(
        ("lr_power",),
        "--lr-schedule polynomial",
        lambda config, _: config.lr_schedule == "polynomial",
    ),
    OptionScope(("warmup",), "--warmup-epochs", lambda config, _: config.warmup_epochs > 0),
    OptionScope(
        ("momentum",),
        "--optimizer sgd and lars",
        lambda config, _: config.optimizer in ("sgd", "lars"),
    ),
    OptionScope(
        ("trust_coefficient",), "--optimizer lars", lambda config, _: config.optimizer == "lars"
    ),
    OptionScope(
        (
            "readers",
            "reader_kind",
            "prefetch",
            "cache_mb",
            "stage",
            "stage_mb",
            "keep_staged",
            "shuffle_shards",
            "augment",
            "damaged",
        ),
        "--data",
        lambda config, _: config.data is not None,
    ),
    OptionScope(("stage_mb", "keep_staged"), "--stage", lambda config, _: config.stage is not None),
    OptionScope(
        ("restart_schedule", "allow_changes"),
        "--resume",
        lambda config, _: config.resume is not None,
    ),
    OptionScope(
        ("checkpoint_steps",),
        "--checkpoint-dir",
        lambda config, _: config.checkpoint_dir is not None,
    ),
)


def check_option_scope(config: TrainConfig, mesh: Mesh) -> None:
    """Raise UserError for an option that was given another value than its default and that this
    run would not read."""
    defaults = TrainConfig()
    for scope in OPTION_SCOPES:
        for name in scope.names:
            value = getattr(config, name)
            if value != getattr(defaults, name) and not scope.applies(config, mesh):
                given = option(name) if value is True else f"{option(name)} {value}"
                raise UserError(
                    f"{given} means nothing for {_run(config)}: it is for {scope.where}"
                )


def _run(config: TrainConfig) -> str:
    split = f"--mesh {config.mesh}" if config.mesh else f"--strategy {config.strategy}"
    return f"--model {config.model} {split}"
