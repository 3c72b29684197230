"""A pipeline whose results have the same bits on any number of ranks.

Its micro-batches are those of every bitwise run, computed one by one. A stage gets what the one
before has made bit for bit, with its layout in memory and the state of the random generator, and
sums the gradients of its own parameters in the order of the fixed tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.comm.layout import share_of
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.division import Division
from phalanx.gradients.reducer import SummedLoss
from phalanx.gradients.tree_reducer import TreeReducer, check_batch_norm
from phalanx.parallel.costs import stage_costs
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.pipeline.chain import join_stages, stage_of
from phalanx.parallel.pipeline.cutting import cut_evenly
from phalanx.parallel.pipeline.exact_messages import ExactMessages
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.messages import Handover
from phalanx.parallel.pipeline.orders import Action
from phalanx.parallel.pipeline.pipelined import Pipelined
from phalanx.parallel.pipeline.stage import MicroBatchLoss, Stage
from phalanx.parallel.pipeline.timeline import duration_in_ticks, ideal_bubble
from phalanx.parallel.step import (
    Batch,
    StepOptions,
    StepResult,
    trained_parameters,
)
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import ExpectedCosts


class BitwiseStage(Stage):
    """Layers of a stage, and the sums of what the micro-batches of a step make of them.

    Each micro-batch has buffers of its own, which begin with the values of the step before, and
    random numbers of its own: their generator is seeded on the first stage, and its state goes from
    stage to stage, once a layer has drawn from it.
    """

    def __init__(
        self,
        layers: nn.Module,
        micro_batches: int,
        seed_micro_batch: Callable[[int, int], None],
        autocast: torch.dtype | None,
    ) -> None:
        """micro_batches: of a full global batch. seed_micro_batch: seeds PyTorch's generators for
        (step, micro-batch)."""
        super().__init__(layers)
        self._seed, self._autocast = seed_micro_batch, autocast
        self._buffers = list(layers.buffers())
        self._is_averaged = [buffer.is_floating_point() for buffer in self._buffers]
        numbers = {id(buffer): number for number, buffer in enumerate(self._buffers)}
        self._places = [
            (module, name, numbers[id(buffer)])
            for module in layers.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._reducer = TreeReducer(
            self._parameters, self._buffers, Division(micro_batches, 1), None
        )
        self._step, self._sizes = 0, dict[int, int]()
        self._buffers_of: dict[int, Sequence[Tensor]] = {}
        """Buffers by micro-batch, as its forward pass has left them."""
        self._losses: dict[int, tuple[float, float]] = {}
        """Weighted loss and weight by micro-batch."""

    def begin(self, step: int, sizes: Mapping[int, int]) -> None:
        super().begin(step, sizes)
        self._step, self._sizes = step, dict(sizes)
        self._buffers_of.clear()
        self._losses.clear()
        self._reducer.begin_step(list(sizes))

    def forward(self, number: int, given: Handover) -> Handover:
        buffers = [buffer.clone() for buffer in self._buffers]
        if given.random_state is None:
            self._seed(self._step, number)
        else:
            torch.set_rng_state(given.random_state)
        before = torch.get_rng_state()
        self._place(buffers)
        try:
            with self._casting():
                made = super().forward(number, given)
        finally:
            self._place(self._buffers)
        self._buffers_of[number] = buffers
        state = torch.get_rng_state()
        has_drawn = given.random_state is not None or not torch.equal(state, before)
        return made._replace(random_state=state if has_drawn else None)

    def end_with(self, number: int, loss: MicroBatchLoss) -> None:
        super().end_with(number, loss)
        self._losses[number] = loss.total, self._sizes[number]

    def backward(self, number: int, gradient: Tensor | None, *, is_last: bool) -> Handover | None:
        """Add what a micro-batch makes to the sums, and return the gradient that goes back.

        Raises: UserError where a layer draws random numbers.
        """
        before = torch.get_rng_state()
        back = super().backward(number, gradient, is_last=is_last)
        if not torch.equal(torch.get_rng_state(), before):
            raise UserError(
                "a layer draws random numbers in its backward pass: in a bitwise pipeline they "
                "would differ from those in one process; use another strategy"
            )
        self._add(number)
        return back

    def _add(self, number: int) -> None:
        share = self._sizes[number] / sum(self._sizes.values())
        averaged = list(compress(self._buffers_of[number], self._is_averaged))
        self._reducer.add(number, share, (*self._losses.get(number, (0.0, 0.0)), 0.0), averaged)

    @torch.no_grad()
    def end(self) -> SummedLoss:
        """Give parameters and buffers the sums over the micro-batches; return that of the
        losses."""
        last = self._buffers_of[max(self._buffers_of)]
        for buffer, value in zip(self._buffers, last, strict=True):
            buffer.copy_(value)
        self._reducer.reduce()
        self._buffers_of.clear()
        assert self._reducer.summed is not None, "of the step"
        return self._reducer.summed

    def _casting(self) -> AbstractContextManager[object]:
        return nullcontext() if self._autocast is None else torch.autocast("cpu", self._autocast)

    def _place(self, buffers: Sequence[Tensor]) -> None:
        """Have the layers use these buffers."""
        for module, name, number in self._places:
            module._buffers[name] = buffers[number]


Seeding = Callable[[int, int], None]
"""Seeds PyTorch's generators for (step, micro-batch)."""


class BitwisePipeline(Pipelined):
    """Stages of a model, each of which updates its own parameters as one process does.

    Every schedule gives the same bits. Those that compute the gradients of weights apart compute
    them with those of inputs here: apart they may be summed in another order.
    """

    collective = "tree"
    name = "pipeline"
    sums_losses = True

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
        state = [name for name, value in model.state_dict().items() if isinstance(value, Tensor)]
        self.tensor_names = tuple(name.replace("_orig_mod.", "") for name in state)
        chain, _, costs = self._measure(model, is_exact=True)
        check_held(state, chain)
        self.group.broadcast_model(model)
        names = list(trained_parameters(model))
        are_trained = [bool(trained_parameters(layer)) for layer in chain.values()]
        cut = cut_evenly(costs, are_trained, self._layout.num_stages)
        parts = {n: stage_of(chain, cut[n]) for n in self._layout.stages_of(self.rank)}
        super().prepare(join_stages(list(parts.values())), rule)
        held_numbers = {name: number for number, name in enumerate(names)}
        self._held_numbers = [held_numbers[name] for name in self._names]
        self._names, self._reduced_bytes = names, 0
        for n, part in parts.items():
            self._stages[n] = BitwiseStage(
                part, self._layout.micro_batches, self._seed_micro_batch, self.options.autocast
            )
        messages = ExactMessages(self._layout, self._world)
        self._pipeline = self._make_pipeline(self.rank, self._stages, messages, self._loss_of)

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
        own = losses[-1][:2] if self.counts_samples else (0.0, 0.0)
        self.summed = SummedLoss(*self.group.sum(own))
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
        outputs = self.predict(inputs)
        return self._world.share(outputs, root=self._layout.last_rank)  # type: ignore[return-value]

    def whole_state(self) -> dict[str, Any]:
        own = self.model.state_dict()
        states = [self._world.share(own, root=rank) for rank in range(self.size)]
        return {name: value for state in states for name, value in state.items()}

    # -- around the steps --------------------------------------------------------------------

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        bubble = ideal_bubble(self._layout, whole_backward_in_ticks)
        return stage_costs(self._trained, bubble)


def check_held(names: Sequence[str], layers: Mapping[str, nn.Module]) -> None:
    """Raise UserError for a tensor of the model that none of its layers holds."""
    held = {f"{layer}.{name}" for layer in layers for name in layers[layer].state_dict()}
    if left := [name for name in names if name not in held]:
        raise UserError(
            f"{left[0]} is outside the layers between which a pipeline splits the model: move it "
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
