"""Any mixture of replicas, sharded parameters and split layers, on one mesh; with stages of a
pipeline as well it is `pipeline.staged.Staged`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.optim import Optimizer

from phalanx.comm.layout import share_of
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.norms import squares_of
from phalanx.gradients.optimizer_update import STATE_NAMES
from phalanx.gradients.reducer import ReduceTimes
from phalanx.models.options import DataShape
from phalanx.models.splits import SplitTraffic
from phalanx.parallel.costs import ParameterSpec, mesh_costs
from phalanx.parallel.local_shards import local_gradient, local_shards, num_shards, parameter_spec
from phalanx.parallel.mesh import AXES, Mesh
from phalanx.parallel.optimizer import OptimizerSource, optimizer_of_parts, torch_optimizer
from phalanx.parallel.options import MeshOptions
from phalanx.parallel.pipeline.chain import check_shared
from phalanx.parallel.sharding import (
    explain_parts,
    parameters_by_unit,
    reshard_parameters,
    shard_parameters,
    synchronize_gradients,
    units_of,
)
from phalanx.parallel.step import (
    StateBytes,
    StepOptions,
    backward,
    storage_bytes,
    trained_parameters,
)
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.tensor import (
    FirstOutputs,
    Table,
    check_sizes,
    split_layers,
    split_traffic,
    tensor_plan_of,
)
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import ExpectedCosts


class OnMesh(Strategy):
    """Strategy on a mesh; its axes, from the outside in: replicas, shards, split layers.

    Messages inside the forward and backward pass (all but the sums over replicas) count as theirs.
    """

    makes_optimizer = True
    runs_step_hooks = False

    def __init__(
        self,
        world: World,
        mesh: Mesh,
        options: MeshOptions | None = None,
        *,
        tensor_plan: object = None,
        step_options: StepOptions | None = None,
    ) -> None:
        """The mesh has as many ranks as the world. tensor_plan: in place of the model's own, see
        `tensor.tensor_plan_of`."""
        options = options or MeshOptions()
        super().__init__(WorldGroup(world, torch_backend=options.backend), step_options)
        self._world, self.collective = world, f"torch.distributed on {options.backend}"
        self._mesh, self._tensor_plan = mesh, tensor_plan
        self._table: Table = {}
        self._zero_stage = options.zero_stage
        self._sequence_parallel = options.sequence_parallel
        self._devices = init_device_mesh("cpu", mesh.shape, mesh_dim_names=AXES)
        self.coordinates = mesh.coordinates(world.rank)
        self.data_rank, self.data_size = mesh.data_rank(world.rank), mesh.data_size
        self.counts_samples = self.coordinates["tp"] == 0
        self.is_sharded = self.meets_in_passes = mesh.size > mesh.dp
        self._sums_replicas = mesh.dp > 1 and mesh.shard == 1  # else FSDP sums over both axes
        self._units: dict[str, list[ParameterSpec]] = {}
        self._first_outputs: FirstOutputs | None = None

    # -- what each axis does to the model ----------------------------------------------------

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        self.group.broadcast_model(model)
        trained = trained_parameters(model)  # the full model's
        names, whole = list(trained), list(trained.values())
        shape = getattr(model, "shape", None)  # a built-in model has it
        self._sequence = shape.targets_per_sample if isinstance(shape, DataShape) else 1
        self._split_traffic: SplitTraffic | None = None
        if self._mesh.tp > 1:
            sequence_parallel = self._sequence_parallel
            self._table = tensor_plan_of(
                model, self._tensor_plan, sequence_parallel=sequence_parallel
            )
            check_sizes(model, self._table, self._mesh.tp)
            if self._tensor_plan is None:
                self._split_traffic = split_traffic(model, sequence_parallel=sequence_parallel)
        model = self._divide(model)
        super().prepare(model, rule)
        _check_ties(names, self._names)
        self._names = names
        self.shards = local_shards(self._parameters)
        self._find_shards()
        reduced = self.shards if self._sums_replicas else ()
        self._reduced_bytes = sum(shard.nbytes for shard in reduced)
        if isinstance(rule, Optimizer):
            self.optimizer = optimizer_of_parts(rule, whole, squares=self._full_squares)
        else:
            self.optimizer = torch_optimizer(rule, self.shards, squares=self._full_squares)

    def _divide(self, model: nn.Module) -> nn.Module:
        """Return this rank's part of the full model."""
        if self._mesh.tp == 1 or self._split_traffic is not None:
            self._split(model)
        else:  # nothing has shown yet that the tensor plan is right
            self._first_outputs = FirstOutputs(model, self.options.autocast)
            self._split(model)
            self._first_outputs.follow(model)
        self._shard(model)
        return model

    def _split(self, model: nn.Module) -> None:
        """Split layers over axis tp."""
        if self._mesh.tp > 1:
            split_layers(model, self._table, self._devices["tp"])

    def _shard(self, model: nn.Module) -> None:
        """Shard over axis shard, and with it axis dp."""
        units = parameters_by_unit(model).items()
        self._units = {name: list(map(parameter_spec, parameters)) for name, parameters in units}
        if self._mesh.shard == 1:
            return
        check_shared(units_of(model), "sharding")
        axes = ("dp", "shard") if self._mesh.dp > 1 else ("shard",)
        shard_parameters(model, self._devices[axes], keep_whole=self._zero_stage < 3)
        explain_parts(model)

    # -- a step ------------------------------------------------------------------------------

    def clear_gradients(self) -> None:
        super().clear_gradients()
        for shard in self.shards:
            shard.grad = None

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        synchronize_gradients(self.model, False)
        yield
        synchronize_gradients(self.model, True)

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        backward(loss_sum, weight, inputs)
        return ReduceTimes(self._reduce())

    def _reduce(self) -> float:
        """Give each local shard the sum of its accumulated gradients over the ranks, in place of
        those of the parameters. Returns: seconds."""
        if self._first_outputs is not None:
            self._first_outputs.check()
            self._first_outputs = None
        began = time.perf_counter()
        gradients = [local_gradient(parameter) for parameter in self._parameters]
        if self._sums_replicas:
            gradients = self._sum_over_replicas(gradients)
        super().clear_gradients()
        for shard, gradient in zip(self.shards, gradients, strict=True):
            shard.grad = gradient
        return time.perf_counter() - began

    def _sum_over_replicas(self, gradients: list[Tensor]) -> list[Tensor]:
        """Sum by one all-reduce of all gradients, which are of one dtype, as one flat vector."""
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self._devices["dp"].get_group())
        parts = flat.split([gradient.numel() for gradient in gradients])
        return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]

    # -- norms of what is cut ----------------------------------------------------------------

    def _find_shards(self) -> None:
        """Compute which of the model's parameters this rank has shards of, and how many ranks have
        the same; nothing where every rank holds everything."""
        if self._mesh.size == self._mesh.dp:
            return
        numbers = {name: number for number, name in enumerate(self._names)}
        self._held_numbers = [numbers[name] for name in trained_parameters(self.model)]
        sharing = self.size // self._mesh.pp  # ranks of a stage
        self._copies = torch.tensor(
            [sharing // num_shards(parameter) for parameter in self._parameters],
            dtype=torch.float64,
        )

    def _full_squares(self, squares: Tensor) -> Tensor:
        """Sum squares over this rank's shards to squares over full parameters, (quantities,
        parameters held).

        Collective, unless every rank holds everything.

        Cost: one all-reduce of 8 bytes for each quantity and parameter of the model, through the
        world: it is not counted among the messages of training.
        """
        if self._held_numbers is None:
            return squares
        of_all = torch.zeros(len(squares), len(self._names), dtype=torch.float64)
        of_all[:, self._held_numbers] = squares / self._copies
        self._world.all_reduce(of_all.numpy())
        return of_all[:, self._held_numbers]

    def _held_gradients(self) -> list[Tensor | None]:
        return [shard.grad for shard in self.shards]

    def gradient_square(self) -> float:
        squares = squares_of([shard.grad for shard in self.shards if shard.grad is not None])
        if self._held_numbers is None:
            return float(squares.sum())
        total = (squares / self._copies).sum().reshape(1)
        self._world.all_reduce(total.numpy())
        return float(total)

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        names = trained_parameters(self.model)
        return {n: self.optimizer.state[p] for n, p in zip(names, self.shards, strict=True)}

    def end_forward(self) -> None:
        reshard_parameters(self.model)

    def close(self) -> None:
        super().close()
        # DTensor's cache of operations names the groups that are no more; the groups of
        # another mesh in this process could be taken for them.
        _clear_sharding_prop_cache()

    # -- what it costs -----------------------------------------------------------------------

    def state_bytes(self) -> StateBytes:
        gradients = [shard.grad for shard in self.shards if shard.grad is not None]
        return super().state_bytes()._replace(gradients=storage_bytes(gradients))

    def expected(self, global_batch_size: int) -> ExpectedCosts:
        share = len(share_of(self.data_rank, self.data_size, global_batch_size))
        sizes = [
            len(share_of(n, self.options.accumulate, share)) for n in range(self.options.accumulate)
        ]
        return mesh_costs(
            self._units,
            self._split_traffic,
            self._mesh,
            self.coordinates,
            self._parameters[0].element_size(),
            quantities=len(STATE_NAMES[self._rule.kind]),
            zero_stage=self._zero_stage,
            rows=[max(1, size) * self._sequence for size in sizes],
        )


def _check_ties(before: Sequence[str], after: Sequence[str]) -> None:
    """Raise UserError where parameters of two modules were one before the model was divided."""
    if untied := [name for name in after if name not in before]:
        raise UserError(
            f"{untied[0]} is a parameter of two modules, which a plan for tensor parallelism or "
            "sharding divides separately: give each module a separate parameter, or use another "
            "strategy"
        )
