"""Options of the strategies: a dataclass for each, and for each axis of a mesh of ranks.

No torch, no MPI. Annotations here are objects, not strings: the command line reads them.
"""

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError
from phalanx.parallel.mesh import Mesh, check_mesh, parse_mesh
from phalanx.parallel.option_groups import (
    AT_LEAST_ONE,
    BELOW_ONE,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Needs,
    ruled,
)
from phalanx.parallel.pipeline.layout import PipelineLayout, PipelineSchedule, layout_of

AllReduceMethod = Literal["auto", "shared", "library", "naive", "direct", "ring", "tree", "halving"]
Compression = Literal["none", "fp16", "bf16", "int8", "powersgd", "topk"]
Overlap = Literal["auto", "on", "off"]
OuterOptimizer = Literal["average", "nesterov"]
ServerMode = Literal["synchronous", "asynchronous", "bounded"]

UNCOMPRESSED = Needs(
    "gradients that are not compressed", lambda options: options.compress == "none"
)
POWERSGD = Needs("--compress powersgd", lambda options: options.compress == "powersgd")
TOPK = Needs("--compress topk", lambda options: options.compress == "topk")
BUCKETED = Needs(
    "gradients that overlap or are compressed, not for --overlap off without --compress",
    lambda options: options.overlap != "off" or options.compress != "none",
)


@dataclass(frozen=True, kw_only=True)
class MpiOptions:
    """Options of `mpi`."""

    all_reduce: AllReduceMethod = ruled("auto", UNCOMPRESSED)
    """Method of summing gradients: `shared` memory of the node, the MPI `library`, an algorithm
    over messages, or `auto`."""

    compress: Compression = "none"
    """`mpi`: compression of gradients: half precision, `int8` or the `topk` largest values with
    error feedback, or a low-rank approximation (`powersgd`)."""

    powersgd_rank: int = ruled(4, AT_LEAST_ONE, POWERSGD)
    """`powersgd`: rank of the approximation."""

    topk_fraction: float = ruled(0.01, FRACTION, TOPK)
    """`topk`: fraction of each bucket's values to send."""

    overlap: Overlap = "auto"
    """`mpi`: sum gradients while the backward pass computes others. `auto`: on if the network is
    slower than the processor, off if ranks share memory or cores."""

    bucket_mb: float | None = ruled(None, POSITIVE, BUCKETED)
    """`mpi`: size of a gradient bucket in megabytes, with overlap or compression. Default: chosen
    by cache and network."""

    link: str | None = None
    """Emulate a link of this bandwidth and latency, such as 1Gbit/s,1ms; every rank then counts as
    a separate node."""


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of `local`."""

    local_steps: int = ruled(16, AT_LEAST_ONE)
    """`local`: steps of each rank between two averages."""

    outer_optimizer: OuterOptimizer = "average"
    """`local`: adopt the average (local SGD), or make a Nesterov step towards it (DiLoCo)."""

    outer_lr: float = ruled(0.7, POSITIVE)
    """`local` with --outer-optimizer nesterov: learning rate of the outer step."""

    outer_momentum: float = ruled(0.9, BELOW_ONE)
    """`local` with --outer-optimizer nesterov: momentum of the outer step."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of `server`."""

    servers: int = ruled(1, AT_LEAST_ONE)
    """`server`: ranks that each hold a shard of the parameters; the others are workers."""

    server_mode: ServerMode = "synchronous"
    """`server`: workers in lockstep, each at its own pace, or none further ahead than
    --staleness."""

    staleness: int = ruled(4, NOT_NEGATIVE)
    """`server` with --server-mode bounded: steps that the fastest worker may be ahead."""

    def num_workers(self, ranks: int) -> int:
        """Return the ranks that are no servers. Raises: UserError when there are none."""
        if self.servers >= ranks:
            raise UserError(
                f"--servers {self.servers} of {ranks} ranks leaves no worker: "
                f"use --ranks {self.servers + 1} or more, or fewer servers"
            )
        return ranks - self.servers


Backend = Literal["mpi", "gloo"]
StrategyName = Literal[
    "sequential", "mpi", "shared", "gloo", "server", "local", "zero", "tensor", "pipeline", "mesh"
]


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """Options of every strategy on a mesh."""

    mesh: str | None = None
    """Ranks along each axis, such as dp=2,tp=2: pp (pipeline), dp (replicas), shard (ZeRO), tp
    (tensor)."""

    backend: Backend = "mpi"
    """Backend of torch.distributed that carries the messages of `zero`, `tensor`, `pipeline` and
    `mesh`."""


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Options of `zero` and the axis `shard`."""

    zero_stage: Literal[1, 2, 3] = 3
    """ZeRO stage, also for the mesh axis `shard`: 1 shards optimizer state, 2 also gradients, 3
    also parameters."""


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Options of `pipeline` and the axis `pp`."""

    pipeline_schedule: PipelineSchedule = "1f1b"
    """Schedule of the pipeline. With --bitwise, zero-bubble computes gradients of weights together
    with those of inputs, since separately they could differ in bits."""

    micro_batches: int | None = ruled(None, AT_LEAST_ONE)
    """Micro-batches per batch. Default: 4 per rank of a pipeline; 8 with --bitwise, also in a
    pipeline."""

    stages_per_rank: int | None = ruled(None, AT_LEAST_ONE)
    """Stages per rank of an interleaved or zero-bubble pipeline. Default: 2."""


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    """Options of `tensor` and the axis `tp`."""

    tensor_plan: str | None = None
    """`tensor` and the axis `tp`: file.py:plan, a mapping from names of your model's layers to
    column or row. Default: the model's `parallelize_plan`."""

    sequence_parallel: bool = False
    """Tensor parallelism also splits activations between the layers, along the sequence."""


@dataclass(frozen=True, kw_only=True)
class MeshOptions(TensorOptions, PipelineOptions, ShardOptions, BackendOptions):
    """Options of `zero`, `tensor`, `pipeline` and `mesh`."""

    strategy: str = "sequential"
    """Any other divides nothing but the data."""

    def layout(self, mesh: Mesh) -> PipelineLayout | None:
        """Return the layout of the pipeline; None where the mesh has one stage.

        Raises: UserError when the schedule cannot run with these numbers.
        """
        if mesh.pp == 1:
            return None
        layout = layout_of(
            self.pipeline_schedule,
            num_ranks=mesh.pp,
            micro_batches=self.micro_batches,
            stages_per_rank=self.stages_per_rank,
        )
        if mesh.shard > 1 and layout.schedule == "zero-bubble":
            raise UserError(
                f"shard={mesh.shard} and --pipeline-schedule zero-bubble exclude each other: "
                "PyTorch's sharding misses gradients of weights that are computed separately; use "
                "interleaved or 1f1b"
            )
        return layout

    @property
    def asked_mesh(self) -> Mesh | None:
        """Return the mesh that was asked for; None: the strategy decides.

        Raises: UserError as `parse_mesh`.
        """
        return None if self.mesh is None else parse_mesh(self.mesh)

    def mesh_of(self, ranks: int) -> Mesh:
        """Return the mesh of `ranks` ranks.

        Raises: UserError when the axes do not multiply up to `ranks`.
        """
        if (mesh := self.asked_mesh) is not None:
            check_mesh(mesh, ranks)
            return mesh
        match self.strategy:
            case "tensor":
                return Mesh(tp=ranks)
            case "pipeline":
                return Mesh(pp=ranks)
            case "zero" if self.zero_stage > 1:
                return Mesh(shard=ranks)
            case _:
                return Mesh(dp=ranks)


@dataclass(frozen=True, kw_only=True)
class StrategyOptions(MpiOptions, MeshOptions, LocalOptions, ServerOptions):
    """A strategy and the options of all: those that it does not have keep their defaults."""

    strategy: StrategyName = "sequential"

    def data_parts(self, ranks: int) -> int:
        """Return into how many shards `ranks` ranks divide each global batch.

        Raises: UserError as `mesh_of`, and when no worker is left beside the servers.
        """
        is_served = self.strategy == "server"
        return self.num_workers(ranks) if is_served else self.mesh_of(ranks).data_size
