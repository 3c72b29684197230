"""A pipeline whose results have the same bits on any number of ranks.

Its micro-batches are those of every bitwise run, computed one by one. A stage gets what the one
before has made bit for bit, with its layout in memory and the state of the random generator, and
sums the gradients of its own parameters in the order of the fixed tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.comm.layout import share_of
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.parallel.bitwise import check_batch_norm
from phalanx.parallel.costs import stage_costs
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.pipeline.bitwise_stage import BitwiseStage
from phalanx.parallel.pipeline.boundaries import boundary_of_samples
from phalanx.parallel.pipeline.bubble import ideal_bubble
from phalanx.parallel.pipeline.chain import check_chain, join_stages, layers_of, stage_of
from phalanx.parallel.pipeline.costing import costs_on_all_ranks
from phalanx.parallel.pipeline.cutting import cut_evenly
from phalanx.parallel.pipeline.engine import Pipeline
from phalanx.parallel.pipeline.exact_messages import ExactMessages
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.orders import Action
from phalanx.parallel.pipeline.stage import MicroBatchLoss
from phalanx.parallel.pipeline.staged_model import StagedModel
from phalanx.parallel.pipeline.timeline import duration_in_ticks
from phalanx.parallel.step import (
    Batch,
    StepOptions,
    StepResult,
    SummedLoss,
    trained_parameters,
)
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import ActionEvent, ExpectedCosts
from phalanx.torch_backend.threads import stop_filling_memory

Seeding = Callable[[int, int], None]
"""Seeds PyTorch's generators for (step, micro-batch)."""


class BitwisePipeline(Strategy):
    """Stages of a model, each of which updates its own parameters as one process does.

    Every schedule gives the same bits. Those that compute the gradients of weights apart compute
    them with those of inputs here: apart they may be summed in another order.
    """

    collective = "tree"
    name = "pipeline"
    makes_steps = sums_losses = True

    def __init__(
        self,
        world: World,
        layout: PipelineLayout,
        *,
        seed_micro_batch: Seeding,
        global_batch_size: int,
        step_options: StepOptions | None = None,
        stages: Sequence[str] | None = None,
    ) -> None:
        """layout: of the ranks of the world, and of the micro-batches of a full global batch.
        stages: layers, as of `layers_of`."""
        super().__init__(WorldGroup(world), step_options)
        self._world, self._layout = world, layout
        self._layer_names = stages
        self._seed_micro_batch = seed_micro_batch
        self.num_blocks = layout.micro_batches
        self._micro_batch_size = -(-global_batch_size // layout.micro_batches)
        self.data_rank, self.data_size = 0, 1
        self.coordinates = {"pp": self.rank}
        self.is_sharded = self.size > 1
        self.counts_samples = self.rank == layout.last_rank
        self._stages: dict[int, BitwiseStage] = {}

    # -- the stages --------------------------------------------------------------------------

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        check_batch_norm(model)
        chain = layers_of(model, self._layer_names)
        state = [name for name, value in model.state_dict().items() if isinstance(value, Tensor)]
        self.tensor_names = tuple(name.replace("_orig_mod.", "") for name in state)
        check_held(state, chain)
        sample = boundary_of_samples(self.sample, model).of(self._micro_batch_size).zero_()
        if self.sample is not None:
            check_chain(model, chain, self.sample, is_exact=True)
        costs = costs_on_all_ranks(self._world, list(chain.values()), sample)
        self.group.broadcast_model(model)
        names = list(trained_parameters(model))
        cut = cut_evenly(
            costs,
            [bool(trained_parameters(layer)) for layer in chain.values()],
            self._layout.num_stages,
        )
        parts = {n: stage_of(chain, cut[n]) for n in self._layout.stages_of(self.rank)}
        super().prepare(join_stages(list(parts.values())), rule)
        held_numbers = {name: number for number, name in enumerate(names)}
        self._held_numbers = [held_numbers[name] for name in self._names]
        self._names, self._reduced_bytes = names, 0
        for n, part in parts.items():
            self._stages[n] = BitwiseStage(
                part, self._layout.micro_batches, self._seed_micro_batch, self.options.autocast
            )
        self._pipeline = Pipeline(
            self._layout,
            self.rank,
            self._stages,
            ExactMessages(self._layout, self._world),
            loss_of=self._loss_of,
            clock_offset_s=self.group.clock().offset_ns / 1e9,
        )
        self.module = StagedModel(self.predict_everywhere)

    # -- a step ------------------------------------------------------------------------------

    def compute_gradients(self, batch: Batch) -> StepResult:
        """Compute the gradients of all micro-batches of `batch`, the whole global batch, and sum
        those of this rank's parameters."""
        number = self._layout.micro_batches
        self._num_samples = batch.num_samples
        shares = [share_of(index, number, batch.num_samples) for index in range(number)]
        micro_batches = [_part_of(batch, share) if share else None for share in shares]
        result = self._pipeline.step(micro_batches, number=batch.step)
        began = time.perf_counter()
        losses = [stage.end() for stage in self._stages.values()]
        own = losses[-1].tolist() if self.counts_samples else [0.0, 0.0]
        self.summed = SummedLoss(*self.group.sum(own))
        stop_filling_memory()
        return result._replace(
            communication_s=result.communication_s + time.perf_counter() - began,
        )

    def _loss_of(self, outputs: Tensor, batch: Batch) -> MicroBatchLoss:
        """Return the loss of a micro-batch, as a bitwise run of one process has it."""
        outputs = outputs if self.options.autocast is None else outputs.float()
        samples = batch.num_samples
        loss = self.loss.mean_over(outputs, batch.targets)
        factor = samples * (1 / self._num_samples)
        return MicroBatchLoss(loss, factor, samples * loss.item(), self.loss.logits(outputs))

    def predict(self, inputs: Tensor) -> Tensor | None:
        if (dtype := self.options.autocast) is None:
            return self._pipeline.predict(inputs, len(inputs))
        with torch.autocast("cpu", dtype=dtype):
            outputs = self._pipeline.predict(inputs, len(inputs))
        return None if outputs is None else outputs.float()

    def predict_everywhere(self, inputs: Tensor) -> Tensor:
        """Return the outputs for `inputs` on every rank."""
        outputs = self.predict(inputs)
        return self._world.share(outputs, root=self._layout.last_rank)  # type: ignore[return-value]

    def whole_state(self) -> dict[str, Any]:
        own = self.model.state_dict()
        states = [self._world.share(own, root=rank) for rank in range(self.size)]
        return {name: value for state in states for name, value in state.items()}

    # -- around the steps --------------------------------------------------------------------

    def synchronize_buffers(self) -> None:
        """Do nothing: each is one rank's, and the same after every step."""

    def actions(self) -> Sequence[ActionEvent]:
        return self._pipeline.recorded_actions()

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        bubble = ideal_bubble(self._layout, whole_backward_in_ticks)
        return stage_costs(self._trained, bubble)

    def close(self) -> None:
        for stage in self._stages.values():
            stage.close()
        self._stages.clear()
        super().close()


def check_held(names: Sequence[str], layers: Mapping[str, nn.Module]) -> None:
    """Raise UserError for a tensor of the model that none of its layers holds."""
    held = {f"{layer}.{name}" for layer in layers for name in layers[layer].state_dict()}
    if left := [name for name in names if name not in held]:
        raise UserError(
            f"{left[0]} is in none of the layers between which a pipeline cuts the model: move it "
            "into one of them"
        )


def _part_of(batch: Batch, share: range) -> Batch:
    """Return a micro-batch in memory of its own: the bits of some operations depend on how their
    memory is aligned."""
    inputs, targets = (each[share.start : share.stop].clone() for each in batch[:2])
    return batch._replace(inputs=inputs, targets=targets, num_samples=len(share))


def whole_backward_in_ticks(action: Action) -> float:
    """Return how long an action takes where gradients of weights come with those of inputs."""
    whole: Mapping[Any, float] = {"input gradient": 2, "weight gradient": 0}
    return whole.get(action.kind, duration_in_ticks(action))
