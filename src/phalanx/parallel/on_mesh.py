"""Any mixture of replicas, sharded parameters and split layers, on one mesh; with stages of a
pipeline as well it is `pipeline.staged.Staged`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.comm.update import UpdateRule
from phalanx.comm.world import World
from phalanx.models.options import ModelName, ModelOptions
from phalanx.parallel.device_mesh import device_mesh
from phalanx.parallel.engine import Backend, OnTorch
from phalanx.parallel.local_parts import local_gradient, local_parts
from phalanx.parallel.mesh import Mesh
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.sharding import (
    give_back_whole_parameters,
    shard_parameters,
    synchronize_gradients,
)
from phalanx.parallel.strategy import (
    IGNORED,
    Batch,
    UpdateTimes,
    backward,
    pieces_of,
)
from phalanx.parallel.tensor import split_layers, table_of


class OnMesh(OnTorch):
    """The axes of the mesh, from the outside in: replicas, shards, split layers. Messages
    inside the forward and backward pass (all but the sums over replicas) count as theirs."""

    def __init__(
        self,
        world: World,
        mesh: Mesh,
        *,
        model: ModelName,
        options: ModelOptions,
        backend: Backend = "mpi",
        zero_stage: int = 3,
        sequence_parallel: bool = False,
    ) -> None:
        """options: of the model, completed; the mesh has as many ranks as the world."""
        super().__init__(world, backend=backend)
        self._mesh, self._name, self._options = mesh, model, options
        self._zero_stage, self._sequence_parallel = zero_stage, sequence_parallel
        self._devices = device_mesh(mesh)
        self.coordinates = mesh.coordinates(world.rank)
        self.data_rank, self.data_size = mesh.data_rank(world.rank), mesh.data_size
        self.counts = self.coordinates["tp"] == 0
        self.is_sharded = mesh.size > mesh.dp

    # -- what each axis does to the model ----------------------------------------------------

    def prepare(self, model: nn.Module, rule: UpdateRule) -> None:
        for tensor in (*model.parameters(), *model.buffers()):
            self._world.broadcast(tensor.detach().numpy())
        model = self._divide(model)
        super().prepare(model, rule)
        self._parts = local_parts(self._parameters)
        self.optimizer = torch_optimizer(rule, self._parts)

    def _divide(self, model: nn.Module) -> nn.Module:
        """What this rank holds of the whole model."""
        self._split(model)
        self._shard(model)
        return model

    def _split(self, model: nn.Module) -> None:
        """Axis tp."""
        if self._mesh.tp == 1:
            return
        table = table_of(self._name, self._options, sequence_parallel=self._sequence_parallel)
        split_layers(model, table, self._devices["tp"])

    def _shard(self, model: nn.Module) -> None:
        """Axis shard, and with it axis dp."""
        if self._mesh.shard == 1:
            return
        axes = ("dp", "shard") if self._mesh.dp > 1 else ("shard",)
        shard_parameters(model, self._devices[axes], keep_whole=self._zero_stage < 3)

    # -- a step ------------------------------------------------------------------------------

    def clear_gradients(self) -> None:
        super().clear_gradients()
        for part in self._parts:
            part.grad = None

    @contextlib.contextmanager
    def unsynchronized(self) -> Iterator[None]:
        synchronize_gradients(self.model, False)
        yield
        synchronize_gradients(self.model, True)

    def pieces(self, batch: Batch) -> list[Batch]:
        """As many on every rank: ranks that share parameters use them equally often."""
        pieces = pieces_of(batch, self.num_accumulated)
        while len(pieces) < self.num_accumulated:
            last = pieces[-1]
            ignored = torch.full_like(last.targets[:1], IGNORED)
            pieces.append(last._replace(inputs=last.inputs[:1], targets=ignored, num_samples=0))
        return pieces

    def update(self, loss_sum: Tensor, global_targets: int) -> UpdateTimes:
        began = time.perf_counter()
        backward(loss_sum, self.loss_weight(global_targets))
        computed = time.perf_counter()
        reduced = self._update_parameters()
        return UpdateTimes(backward_s=computed - began, communication_s=reduced - computed)

    def _update_parameters(self) -> float:
        """By the gradients that are there. Returns: `time.perf_counter()` before the optimizer."""
        gradients = [local_gradient(parameter) for parameter in self._parameters]
        if self._mesh.dp > 1 and self._mesh.shard == 1:
            gradients = self._sum_over_replicas(gradients)
        for part, gradient in zip(self._parts, gradients, strict=True):
            part.grad = gradient
        reduced = time.perf_counter()
        self.optimizer.step()
        return reduced

    def _sum_over_replicas(self, gradients: list[Tensor]) -> list[Tensor]:
        """One all-reduce of all gradients, which are of one dtype, as one long vector."""
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self._devices["dp"].get_group())
        self.communicated_bytes += flat.nbytes
        parts = flat.split([gradient.numel() for gradient in gradients])
        return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        names = [name for name, _ in self.model.named_parameters()]
        return {n: self.optimizer.state[p] for n, p in zip(names, self._parts, strict=True)}

    def predict(self, inputs: Tensor) -> Tensor | None:
        logits: Tensor = self.model(inputs)
        give_back_whole_parameters(self.model)
        return logits
