"""Stages of a pipeline, each of which may be replicated, sharded and split on the mesh's other
axes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.parallel.costs import stage_costs, step_traffic
from phalanx.parallel.mesh import Mesh
from phalanx.parallel.on_mesh import OnMesh
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.options import MeshOptions
from phalanx.parallel.pipeline.boundaries import Boundary, outputs_of
from phalanx.parallel.pipeline.chain import join_stages, stage_of
from phalanx.parallel.pipeline.cutting import cut_evenly
from phalanx.parallel.pipeline.engine import summed
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.mesh_stage import MeshStage
from phalanx.parallel.pipeline.messages import TensorMessages
from phalanx.parallel.pipeline.pipelined import Pipelined
from phalanx.parallel.pipeline.timeline import ideal_bubble
from phalanx.parallel.sharding import reshard_parameters
from phalanx.parallel.step import Batch, StepOptions, StepResult, equally_many
from phalanx.parallel.tensor import pairs_of_children
from phalanx.parallel.world_group import running_statistics
from phalanx.records.events import ExpectedCosts


class Staged(Pipelined, OnMesh):
    """A mesh whose axis pp has several ranks.

    The model is cut where its stages cost alike, as measured on rank 0; `model` is what this rank
    holds, under the names of the whole model.
    """

    def __init__(
        self,
        world: World,
        mesh: Mesh,
        options: MeshOptions | None = None,
        *,
        layout: PipelineLayout,
        global_batch_size: int,
        tensor_plan: object = None,
        step_options: StepOptions | None = None,
        stages: Sequence[str] | None = None,
    ) -> None:
        """layout: of as many ranks as the axis pp has. stages: layers, as of `layers_of`."""
        super().__init__(world, mesh, options, tensor_plan=tensor_plan, step_options=step_options)
        self._layout, self._layer_names = layout, stages
        share = -(-global_batch_size // self.data_size)
        self._micro_batch_size = -(-share // layout.micro_batches)
        self._place = self.coordinates["pp"]
        self.counts_samples = self.counts_samples and self._place == layout.last_rank

    def _divide(self, model: nn.Module) -> nn.Module:
        chain, samples, costs = self._measure(model, is_exact=False)
        cut = self._cut(chain, costs)
        outputs = outputs_of(list(chain.values()), samples)
        self._outputs = outputs[-1]
        boundaries = [
            Boundary(tuple(samples.shape[1:]), samples.dtype),
            *(self._divided(outputs[stage[-1]]) for stage in cut[:-1]),
        ]
        stages = {number: stage_of(chain, cut[number]) for number in self._numbers}
        for stage in stages.values():
            self._split(stage)
            self._shard(stage)
        self._stages = list(stages.values())
        group = self._devices["pp"].get_group()
        self._inner_boundaries = boundaries[1:]
        self._pipeline = self._make_pipeline(
            self._place,
            {number: MeshStage(stage) for number, stage in stages.items()},
            TensorMessages(self._layout, group, boundaries),
            summed(self.loss),
        )
        return join_stages(self._stages)

    @property
    def _numbers(self) -> tuple[int, ...]:
        return self._layout.stages_of(self._place)

    def _cut(self, chain: Mapping[str, nn.Module], costs: Sequence[float]) -> list[range]:
        """Cut the chain into stages between layers.

        A pair of layers that tensor parallelism splits by columns and by rows stays together: what
        is between them is not the full tensor.
        """
        groups = pairs_of_children(chain, self._table)
        ends = list(itertools.accumulate(map(len, groups)))
        units = [range(end - len(group), end) for group, end in zip(groups, ends, strict=True)]
        layers = list(chain.values())
        cut = cut_evenly(
            [sum(costs[layer] for layer in unit) for unit in units],
            [any(True for layer in unit for _ in layers[layer].parameters()) for unit in units],
            self._layout.num_stages,
        )
        return [range(units[stage[0]].start, units[stage[-1]].stop) for stage in cut]

    def _divided(self, end: Boundary) -> Boundary:
        """Return this rank's share of a boundary, where activations are split along the
        sequence."""
        if not (self._sequence_parallel and self._mesh.tp > 1):
            return end
        tokens, *others = end.shape
        return Boundary((tokens // self._mesh.tp, *others), end.dtype)

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        check_statistics(model)
        super().prepare(model, rule)

    # -- a step ------------------------------------------------------------------------------

    def compute_gradients(self, batch: Batch) -> StepResult:
        micro_batches = equally_many(batch, self._layout.micro_batches)
        result = self._pipeline.step(micro_batches, number=batch.step)
        logits = None if result.logits is None else result.logits[: len(batch.inputs)]
        communication_s = result.communication_s + self._reduce()
        return result._replace(logits=logits, communication_s=communication_s)

    def predict(self, inputs: Tensor) -> Tensor | None:
        logits = self._pipeline.predict(inputs, self._micro_batch_size)
        for stage in self._stages:
            reshard_parameters(stage)
        return logits

    def predict_everywhere(self, inputs: Tensor) -> Tensor:
        outputs = self.predict(inputs)
        if outputs is None:
            outputs = self._outputs.of(len(inputs))
        group = self._devices["pp"].get_group()
        dist.broadcast(outputs, group=group, group_src=self._layout.last_rank)
        return outputs

    def whole_state(self) -> dict[str, Any]:
        own, group = super().whole_state(), self._devices["pp"].get_group()
        states: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(states, own, group=group)
        return {name: value for state in states for name, value in state.items()}

    def expected(self, global_batch_size: int) -> ExpectedCosts:
        """Return expected bytes where pp is the only axis; the bubble in any case."""
        bubble = ideal_bubble(self._layout)
        if self._mesh.size > self._mesh.pp:
            return ExpectedCosts(bubble=bubble)
        boundary_bytes = [each.num_bytes(global_batch_size) for each in self._inner_boundaries]
        traffic = step_traffic(self._layout, self._place, boundary_bytes)
        return stage_costs(self._trained, bubble, traffic)


def check_statistics(model: nn.Module) -> None:
    """Raise UserError for batch norm, whose statistics would be of one micro-batch's rank."""
    if running_statistics(model):
        raise UserError(
            "a pipeline cannot maintain the running statistics of batch norm: use a norm without "
            "them (LayerNorm, GroupNorm), or another strategy"
        )
