"""Names of the ways to split a training, and the options by which a run is told from others: all
that decide, by exclusion. Pure.

A scheme is a strategy with those of its options that make another scheme of it: `mpi ring`,
`server asynchronous`, `zero 3`, `pipeline 1f1b`, `mesh dp=2,tp=2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.records.configuration import deciding_options
from phalanx.records.schema import Run, Setting

PHRASES = {
    "sequential": "the sequential program",
    "mpi": "MPI",
    "mpi library": "the MPI library\N{RIGHT SINGLE QUOTATION MARK}s all-reduce",
    "mpi ring": "the ring all-reduce",
    "mpi tree": "the tree all-reduce",
    "mpi halving": "the halving all-reduce",
    "mpi naive": "the naive all-reduce",
    "mpi direct": "the direct all-reduce",
    "mpi shared": "the all-reduce in shared memory",
    "shared": "MPI with shared parameters",
    "gloo": "Gloo",
    "tensor": "tensor parallelism",
    "pipeline gpipe": "the GPipe pipeline",
    "pipeline 1f1b": "the 1F1B pipeline",
    "pipeline interleaved": "the interleaved pipeline",
    "pipeline zero-bubble": "the zero-bubble pipeline",
    "local": "local SGD",
    "local nesterov": "local SGD with Nesterov",
    "server": "the synchronous parameter server",
    "server asynchronous": "the asynchronous parameter server",
    "server bounded": "the parameter server with bounded staleness",
    "server 2 servers": "two synchronous parameter servers",
}
PHRASES_OF_STRATEGIES = {"zero": "ZeRO", "mesh": "the mesh"}
DRIFTING = ("server asynchronous", "server bounded", "local")
"""Schemes that do not make the update of the sequential program: by theory their losses differ."""


GROUPS = {
    "summed gradients": ("mpi", "shared", "gloo"),
    "servers, local steps": ("server", "local"),
    "sharded state": ("zero",),
    "split layers, pipelines": ("tensor", "pipeline", "mesh"),
}
"""Strategies that are drawn together, by the title of their charts."""


def scheme_of(setting: Setting) -> str:
    """The strategy, and what else tells it from the others of its kind."""
    options, words = setting.options, [setting.strategy]
    match setting.strategy:
        case "mpi":
            words.append(_unless("auto", options.get("all_reduce")))
        case "server":
            words.append(_unless("synchronous", options.get("server_mode")))
            servers = options.get("servers", 1)
            words.append(f"{servers} servers" if servers != 1 else "")
        case "local":
            words.append(_unless("average", options.get("outer_optimizer")))
        case "zero":
            words.append(str(options.get("zero_stage", 3)))
        case "pipeline":
            words.append(str(options.get("pipeline_schedule", "1f1b")))
        case "mesh":
            words.append(",".join(f"{axis}={ranks}" for axis, ranks in setting.mesh.items()))
            words += _of_its_axes(setting)
        case _:
            pass
    words.append(_unless("mpi", options.get("backend")))
    return " ".join(word for word in words if word)


def group_of(scheme: str) -> str | None:
    """Return the title of a scheme's group; None for the sequential program and unknown schemes."""
    strategy = scheme.partition(" ")[0]
    return next((title for title, own in GROUPS.items() if strategy in own), None)


def scheme_phrase(scheme: str) -> str:
    """Return the name of a scheme in a sentence."""
    base, bracket, options = scheme.partition(" (")
    if bracket:
        return f"{scheme_phrase(base)} ({options}"
    if scheme in PHRASES:
        return PHRASES[scheme]
    strategy, _, rest = scheme.partition(" ")
    return (
        f"{PHRASES_OF_STRATEGIES[strategy]} {rest}"
        if strategy in PHRASES_OF_STRATEGIES and rest
        else scheme
    )


def makes_the_same_update(scheme: str) -> bool:
    """Return whether the scheme by theory trains the same model as the sequential program. A
    strategy of a program's own may not."""
    is_ours = scheme == "sequential" or group_of(scheme) is not None
    return is_ours and not scheme.startswith(DRIFTING)


def _of_its_axes(setting: Setting) -> list[str]:
    """Return the options of a mesh's axes that are not the default."""
    options = setting.options
    stage = options.get("zero_stage") if "shard" in setting.mesh else None
    return [f"ZeRO {stage}" if stage else "", str(options.get("pipeline_schedule", ""))]


def _unless(default: str, value: object) -> str:
    return "" if value in (None, default) else str(value)


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
