"""The options of a run by which it is told from others: all that decide, by exclusion. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.records.configuration import deciding_options
from phalanx.records.schema import Run, Setting

Options = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""

MODEL_SIZES = ("width", "layers", "heads", "hidden")

IN_THE_SETTING = frozenset(
    {
        *("model", "dataset", "strategy", "ranks", "threads", "batch_size", "per_rank_batch_size"),
        *("epochs", "lr", "optimizer", "seed", "dtype", "scheme", "nodes"),
        *MODEL_SIZES,
    }
)
"""Options that are a field of `TrainingWorkload` or `ParallelLayout`; and the seed."""

SPLITTING = frozenset(
    {
        *("accumulate", "all_reduce", "backend", "bucket_mb", "compress", "link", "local_steps"),
        *("mesh", "micro_batches", "outer_lr", "outer_momentum", "outer_optimizer", "overlap"),
        *("pipeline_schedule", "powersgd_rank", "sequence_parallel", "server_mode", "servers"),
        *("slow_rank", "staleness", "stages_per_rank", "topk_fraction", "zero_stage"),
    }
)
"""Options of how the work is split. What is in no list here belongs to what is trained, so runs
that differ in it are not compared."""

IN_THE_SCHEME = frozenset(
    {
        *("all_reduce", "backend", "mesh", "outer_optimizer", "pipeline_schedule"),
        *("server_mode", "servers", "zero_stage"),
    }
)
"""Options that the scheme's name contains."""


def workload_options(run: Run) -> Options:
    """Return the deciding options besides the fields of a workload, with recorded defaults."""
    return _sorted({n: v for n, v in _all(run).items() if n not in SPLITTING})


def layout_options(run: Run) -> Options:
    return _sorted({n: v for n, v in _all(run).items() if n in SPLITTING})


def named_with_options(scheme: str, setting: Setting) -> str:
    """The scheme, with what was chosen otherwise than by default and its name does not tell:
    `mpi (compress topk)`."""
    if scheme == "sequential":
        return scheme
    named = SPLITTING - IN_THE_SCHEME
    words = [f"{_words(n)} {v}" for n, v in sorted(setting.options.items()) if n in named]
    return f"{scheme} ({', '.join(words)})" if words else scheme


def varying_options(own: Options, everyone: Iterable[Options]) -> list[str]:
    """Return the options of `own` that are not the same in `everyone`, in words."""
    all_of_them = [dict(options) for options in everyone]
    return [
        f"{_words(name)} {value}"
        for name, value in own
        if any(options.get(name) != value for options in all_of_them)
    ]


def _all(run: Run) -> dict[str, object]:
    """Return the options of the configuration, completed from the setting."""
    found = deciding_options({**run.setting.options, **run.config})
    found.setdefault("lr_schedule", run.setting.learning_rate_schedule)
    found.setdefault("lr_rule", run.setting.learning_rate_rule)
    return {name: value for name, value in found.items() if name not in IN_THE_SETTING}


def _sorted(options: Mapping[str, object]) -> Options:
    return tuple(sorted((name, str(value)) for name, value in options.items()))


def _words(name: str) -> str:
    return name.replace("_", " ")
