"""Options of the parallelism of a run, validated where they are made. No torch, no MPI.

Annotations here are objects, not strings: the command line reads those of the class that inherits
these options, in whose module the names mean nothing.
"""

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError
from phalanx.parallel.mesh import Mesh, check_mesh, parse_mesh
from phalanx.parallel.pipeline.layout import PipelineLayout, PipelineSchedule, layout_of

Strategy = Literal[
    "sequential", "mpi", "shared", "gloo", "server", "local", "zero", "tensor", "pipeline", "mesh"
]
AllReduceMethod = Literal["auto", "shared", "library", "naive", "direct", "ring", "tree", "halving"]
ServerMode = Literal["synchronous", "asynchronous", "bounded"]
OuterOptimizer = Literal["average", "nesterov"]
Backend = Literal["mpi", "gloo"]

WITHOUT_MPI: tuple[Strategy, ...] = ("sequential", "gloo")
MESH_STRATEGIES: tuple[Strategy, ...] = ("zero", "tensor", "pipeline", "mesh")


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Options of the parallelism: strategy, ranks, mesh, pipeline, servers."""

    strategy: Strategy = "sequential"
    """`sequential` in one process, `mpi` ranks that sum their gradients, `shared` the same with
    parameters and optimizer state that they share, `gloo` PyTorch's DDP, `server` workers and
    parameter servers, `local` SGD that averages now and then, `zero` sharded state, `tensor` split
    layers, `pipeline` stages, `mesh` any of these together (what --mesh alone means)."""

    ranks: int | None = None
    """Number of processes. Default: as many as the launcher started or the mesh has, else one a
    core."""

    threads: int | None = None
    """Compute threads of each rank. Default: cores ÷ ranks of the node."""

    accumulate: int = 1
    """Micro-batches into which each rank splits its shard of a batch, to save memory."""

    all_reduce: AllReduceMethod = "auto"
    """How `mpi` sums gradients: `shared` memory of the node, the MPI `library`, an algorithm on
    messages, or `auto`."""

    servers: int = 1
    """`server`: ranks that each hold a shard of the parameters; the others are workers."""

    server_mode: ServerMode = "synchronous"
    """`server`: all workers in step, each at its own pace, or no one further ahead than
    --staleness."""

    staleness: int = 4
    """`server` with --server-mode bounded: steps that the fastest worker may be ahead."""

    local_steps: int = 16
    """`local`: steps of each rank by itself between two averages."""

    outer_optimizer: OuterOptimizer = "average"
    """`local`: what is done with the average: taken (local SGD), or as a Nesterov step (DiLoCo)."""

    outer_lr: float = 0.7
    """`local` with --outer-optimizer nesterov: its learning rate."""

    outer_momentum: float = 0.9
    """`local` with --outer-optimizer nesterov: its momentum."""

    mesh: str | None = None
    """Ranks along each axis, as dp=2,tp=2: pp pipeline stages, dp replicas, shard (ZeRO), tp."""

    zero_stage: Literal[1, 2, 3] = 3
    """`zero` and the mesh's axis `shard`: what is cut up: 1 optimizer state, 2 gradients as well,
    3 parameters as well."""

    pipeline_schedule: PipelineSchedule = "1f1b"
    """The order of a pipeline's work."""

    micro_batches: int | None = None
    """Micro-batches of a batch in the pipeline. Default: 4 for each rank of it."""

    stages_per_rank: int | None = None
    """Stages that each rank of an interleaved or zero-bubble pipeline holds. Default: 2."""

    sequence_parallel: bool = False
    """Tensor parallelism splits also what lies between the layers, along the sequence."""

    backend: Backend = "mpi"
    """What carries the messages of `zero`, `tensor`, `pipeline` and `mesh`."""

    slow_rank: str | None = None
    """Makes a rank slower, as RANK:SECONDS a step, to see which ranks wait for it."""

    def check_parallel(self) -> None:
        """Raise UserError for values that no run could use."""
        if self.mesh is not None and self.strategy == "sequential":
            object.__setattr__(self, "strategy", "mesh")
        for name in ("ranks", "threads", "accumulate", "servers", "local_steps", "micro_batches",
                     "stages_per_rank"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{option(name)} must be at least 1, not {value}")
        if self.staleness < 0:
            raise UserError(f"--staleness must not be negative, not {self.staleness}")
        if not self.outer_lr > 0:
            raise UserError(f"--outer-lr must be positive, not {self.outer_lr}")
        if not 0 <= self.outer_momentum < 1:
            raise UserError(f"--outer-momentum must be in [0, 1), not {self.outer_momentum}")
        if self.strategy == "sequential" and (self.ranks or 1) != 1:
            raise UserError(
                f"--strategy sequential runs in one process, not on {self.ranks} ranks; "
                f"use --strategy mpi --ranks {self.ranks}, or --threads for more cores"
            )
        if self.strategy == "mesh" and self.mesh is None:
            raise UserError("--strategy mesh needs --mesh, such as --mesh dp=2,tp=2")
        if self.mesh is not None:
            if self.strategy != "mesh":
                raise UserError(
                    f"--mesh {self.mesh} and --strategy {self.strategy} exclude each other: "
                    "leave --strategy out"
                )
            mesh = parse_mesh(self.mesh)
            if self.ranks is not None:
                check_mesh(mesh, self.ranks)
        if self.slow_rank is not None:
            parse_slow_rank(self.slow_rank)

    @property
    def uses_mpi(self) -> bool:
        return self.strategy not in WITHOUT_MPI

    def mesh_of(self, ranks: int) -> Mesh:
        """The grid of `ranks` ranks; all along the data axis for what has no mesh.

        Raises: UserError when the axes do not multiply up to `ranks`.
        """
        match self.strategy:
            case "mesh":
                assert self.mesh is not None, "checked where it is made"
                mesh = parse_mesh(self.mesh)
                check_mesh(mesh, ranks)
                return mesh
            case "zero" if self.zero_stage > 1:
                return Mesh(shard=ranks)
            case "tensor":
                return Mesh(tp=ranks)
            case "pipeline":
                return Mesh(pp=ranks)
            case _:
                return Mesh(dp=ranks)

    def pipeline_layout(self, mesh: Mesh) -> PipelineLayout:
        """Raise UserError when the schedule cannot run with these numbers."""
        return layout_of(
            self.pipeline_schedule,
            num_ranks=mesh.pp,
            micro_batches=self.micro_batches,
            stages_per_rank=self.stages_per_rank,
        )

    def data_parts(self, ranks: int) -> int:
        """Return into how many shards a global batch is divided.

        Raises: UserError when no worker is left beside the servers.
        """
        if self.strategy != "server":
            return self.mesh_of(ranks).data_size
        if self.servers >= ranks:
            raise UserError(
                f"--servers {self.servers} of {ranks} ranks leaves no worker: "
                f"use --ranks {self.servers + 1} or more, or fewer servers"
            )
        return ranks - self.servers


def parse_slow_rank(text: str) -> tuple[int, float]:
    """`1:0.02` → (1, 0.02). Raises: UserError for anything else."""
    rank, _, seconds = text.partition(":")
    try:
        parsed = int(rank), float(seconds)
    except ValueError:
        parsed = -1, -1.0
    if parsed[0] < 0 or not parsed[1] >= 0:
        raise UserError(f"--slow-rank {text} is not RANK:SECONDS, such as 1:0.02")
    return parsed


def option(name: str) -> str:
    """Return the option as the user writes it."""
    return "--" + name.replace("_", "-")
