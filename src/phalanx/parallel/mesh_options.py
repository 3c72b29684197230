"""Options of the strategies that divide a model on a mesh of ranks: a dataclass for each axis.

No torch, no MPI. Annotations here are objects, not strings: the command line reads them.
"""

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError
from phalanx.parallel.mesh import Mesh, check_mesh, parse_mesh
from phalanx.parallel.option_groups import AT_LEAST_ONE, ruled
from phalanx.parallel.pipeline.layout import PipelineLayout, PipelineSchedule, layout_of

Backend = Literal["mpi", "gloo"]


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """Options of every strategy on a mesh."""

    mesh: str | None = None
    """Ranks along each axis, as dp=2,tp=2: pp pipeline stages, dp replicas, shard (ZeRO), tp."""

    backend: Backend = "mpi"
    """Backend of torch.distributed that carries the messages of `zero`, `tensor`, `pipeline` and
    `mesh`."""


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Options of `zero` and the axis `shard`."""

    zero_stage: Literal[1, 2, 3] = 3
    """ZeRO stage, also of the mesh's axis `shard`: 1 shards optimizer state, 2 also gradients, 3
    also parameters."""


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Options of `pipeline` and the axis `pp`."""

    pipeline_schedule: PipelineSchedule = "1f1b"
    """The order of a pipeline's work. With --bitwise zero-bubble computes the gradients of weights
    with those of inputs: apart they could have other bits."""

    micro_batches: int | None = ruled(None, AT_LEAST_ONE)
    """Micro-batches of a batch: in a pipeline, by default 4 for each rank of it; with --bitwise, in
    a pipeline too, by default 8."""

    stages_per_rank: int | None = ruled(None, AT_LEAST_ONE)
    """Stages that each rank of an interleaved or zero-bubble pipeline holds. Default: 2."""


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    """Options of `tensor` and the axis `tp`."""

    tensor_plan: str | None = None
    """`tensor` and the axis `tp`: file.py:plan, a mapping from names of your model's layers to
    column or row. Default: the model's own `parallelize_plan`."""

    sequence_parallel: bool = False
    """Tensor parallelism splits also what lies between the layers, along the sequence."""


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
                "PyTorch's sharding misses gradients of weights that are computed by themselves; "
                "use interleaved or 1f1b"
            )
        return layout

    def mesh_of(self, ranks: int) -> Mesh:
        """Return the mesh of `ranks` ranks.

        Raises: UserError when the axes do not multiply up to `ranks`.
        """
        if self.mesh is not None:
            mesh = parse_mesh(self.mesh)
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
