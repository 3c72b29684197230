"""The options of `phalanx bench collectives`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from phalanx.bench.sizes import DEFAULT_SIZES, parse_sizes
from phalanx.comm.dtypes import DTYPES, ReduceOp, check_operation
from phalanx.errors import UserError
from phalanx.records.collectives import Collective, beside_crowd
from phalanx.records.configuration import RecordedOptions, check_counts, check_positive

DTypeName = Literal[
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8"
]
OpName = Literal["sum", "product", "min", "max", "band", "bor", "bxor"]
OnMessages = Literal["naive", "direct", "ring", "tree", "halving"]
Peer = Literal["mpi", "deepspeed", "oneccl", "gloo", "nccl"]
PathName = Literal["window", "phalanx", "world", "torch", Peer, OnMessages]

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
PATHS: tuple[PathName, ...] = get_args(PathName)
LOOP_ON_SHARED_CORES = 10
DEFAULT_PATHS = tuple(path for path in PATHS if path not in get_args(OnMessages))


MOST_BUSY = 1000
"""Processes of a crowd: more of them would take the memory of the machine."""


@dataclass(frozen=True, kw_only=True)
class CollectivesConfig(RecordedOptions):
    """Options of the benchmark. The defaults take about a minute and a half on two cores."""

    ranks: int = 2
    """Number of ranks to start on this node."""

    collectives: tuple[str, ...] = ("all_reduce",)
    """all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, barrier, or all."""

    sizes: tuple[str, ...] | None = None
    """Bytes of each rank's buffer, such as 64KB,1MB,25MB. Default: 4 B, 16 B … 64 MB."""

    dtype: DTypeName = "float32"
    """Element type."""

    op: OpName = "sum"
    """Reduce operation, for collectives that reduce."""

    paths: tuple[str, ...] | None = None
    """Paths to compare: window (Phalanx, buffers in shared memory), phalanx (Phalanx, private
    buffers), world (phalanx.World.all_reduce of a tensor), torch (torch.distributed on backend
    mpi), mpi (the MPI library itself), deepspeed (its all-reduce in shared memory), oneccl, gloo,
    nccl, and naive, direct, ring, tree, halving (Phalanx on messages; all-reduce only). Default:
    all but the last five; paths that are not installed are left out."""

    device: str = "cpu"
    """Device of the tensors of path torch: cpu, auto, or an accelerator by PyTorch's name, such as
    cuda. Its label says whether MPI gets them directly (direct) or through pinned host memory."""

    repeats: int | None = None
    """Calls of each path at each size. Default: 10 to 400, as --seconds allows."""

    loop: int | None = None
    """Calls timed together, without a barrier between them. Default: 1, or 10 if ranks share cores,
    since they then leave a barrier one after the other, which would add to a single call."""

    seconds: float = 60.0
    """Time budget for all calls; the minimum number of calls may take longer."""

    crowd: int = 0
    """Busy processes beside the ranks, as on a machine shared with other programs."""

    output: Path | None = None
    """Folder of the records. Default: a new one under runs/bench."""

    timeout_s: float = 120.0
    """Timeout of ranks that wait for each other."""

    def __post_init__(self) -> None:
        check_counts(self, 1, "ranks", "repeats", "loop")
        check_counts(self, 0, "crowd")
        if self.crowd > MOST_BUSY:
            raise UserError(f"--crowd {self.crowd}: at most {MOST_BUSY} busy processes are started")
        check_positive(self, "seconds", "timeout_s")
        _ = self.chosen_collectives, self.chosen_paths, self.sizes_bytes
        if self.device != "cpu" and "torch" not in self.chosen_paths:
            raise UserError(f"--device {self.device} is for path torch: add torch to --paths")
        try:
            check_operation(DTYPES[self.dtype], self.reduce_op)
        except TypeError as error:
            raise UserError(f"--op {self.op} --dtype {self.dtype}: {error}") from error

    @property
    def chosen_collectives(self) -> tuple[Collective, ...]:
        names = _names("collectives", self.collectives, (*COLLECTIVES, "all"))
        return COLLECTIVES if "all" in names else tuple(c for c in COLLECTIVES if c in names)

    @property
    def chosen_paths(self) -> tuple[PathName, ...]:
        if self.paths is None:
            return DEFAULT_PATHS
        names = _names("paths", self.paths, (*PATHS, "all"))
        return PATHS if "all" in names else tuple(path for path in PATHS if path in names)

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        return DEFAULT_SIZES if self.sizes is None else parse_sizes(self.sizes)

    @property
    def reduce_op(self) -> ReduceOp:
        return ReduceOp[self.op.upper()]

    def calls_a_time(self, ranks: int, cores: int) -> int:
        """Return the number of calls timed together, for `ranks` on a node of `cores`."""
        return self.loop or (1 if ranks + self.crowd <= cores else LOOP_ON_SHARED_CORES)

    @property
    def title(self) -> str:
        """One-line summary of the measurement, the first line of a log."""
        what = ", ".join(self.chosen_collectives)
        ranks = f"{self.ranks} rank{'s' * (self.ranks != 1)}"
        beside = beside_crowd(self.crowd)
        return f"{what} on {ranks}{beside}, {self.dtype} {self.op}: {', '.join(self.chosen_paths)}"


def _names(option: str, words: tuple[str, ...], known: tuple[str, ...]) -> list[str]:
    """Return the values of an option, also if separated by commas."""
    names = [name for word in words for name in word.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"{unknown[0]} is not one of" if unknown else "needs at least one of"
        raise UserError(f"--{option} {what} {', '.join(known)}")
    return names
