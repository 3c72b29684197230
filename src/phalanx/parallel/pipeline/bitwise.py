"""A pipeline whose results have the same bits on any number of ranks.

Its micro-batches are those of every bitwise run, computed one by one. A stage gets what the one
before has made bit for bit, with its layout in memory and the state of the random generator, and
sums the gradients of its own parameters in the order of the fixed tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.layout import share_of
from phalanx.comm.progress import messages_moving
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.norms import (
    NonFiniteGradients,
    describe_nonfinite_sums,
    find_nonfinite,
    square_of,
)
from phalanx.gradients.optimizer_update import STATE_NAMES
from phalanx.parallel.bitwise import check_batch_norm
from phalanx.parallel.loss import join_logits
from phalanx.parallel.optimizer import OptimizerSource, torch_optimizer
from phalanx.parallel.pipeline.bitwise_stage import BitwiseStage
from phalanx.parallel.pipeline.bubble import ideal_bubble
from phalanx.parallel.pipeline.chain import check_chain, join_stages, layers_of, stage_of
from phalanx.parallel.pipeline.costing import measured_costs
from phalanx.parallel.pipeline.cutting import cut_evenly
from phalanx.parallel.pipeline.exact_messages import ExactMessages, Handover
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.orders import Action, order_of
from phalanx.parallel.pipeline.recorder import Recorder
from phalanx.parallel.pipeline.staged_model import StagedModel
from phalanx.parallel.pipeline.timeline import duration_in_ticks
from phalanx.parallel.step import (
    Batch,
    StepOptions,
    StepResult,
    SummedLoss,
    TimedAction,
    storage_bytes,
    trained_parameters,
)
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import WorldGroup, broadcast_tensors
from phalanx.records.events import ExpectedCosts
from phalanx.torch_backend.threads import naming_operations, stop_filling_memory

RECORDED_STEPS = (4, 5)
"""Of this process, from 1: by then every buffer has been made; more would make records long."""
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
        layer_costs: Sequence[float] | None = None,
    ) -> None:
        """layout: of the ranks of the world, and of the micro-batches of a full global batch.
        stages: layers, as of `layers_of`.
        layer_costs: of the chain's layers, in any unit; None: measured.

        Raises: UserError where ranks may be lost.
        """
        if is_fault_tolerant():
            raise UserError(
                'strategy="pipeline" keeps the parameters of a stage on one rank, with which they '
                'would be lost, so that it cannot --survive: take strategy="mpi"'
            )
        super().__init__(WorldGroup(world), step_options)
        self._world, self._layout, self._layer_costs = world, layout, layer_costs
        self._layer_names = stages
        self._seed_micro_batch = seed_micro_batch
        self.num_blocks = layout.micro_batches
        self._micro_batch_size = -(-global_batch_size // layout.micro_batches)
        self.data_rank, self.data_size = 0, 1
        self.coordinates = {"pp": self.rank}
        self.is_sharded = self.size > 1
        self.counts_samples = self.rank == layout.last_rank
        self._order = [*order_of(layout, self.rank)]
        self._stages: dict[int, BitwiseStage] = {}
        self._chains: dict[int, nn.Module] = {}
        self._messages = ExactMessages(world.group)
        self._steps_made = 0

    # -- the stages --------------------------------------------------------------------------

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        check_batch_norm(model)
        chain = layers_of(model, self._layer_names)
        state = [name for name, value in model.state_dict().items() if isinstance(value, Tensor)]
        self.tensor_names = tuple(name.replace("_orig_mod.", "") for name in state)
        check_held(state, chain)
        sample = self._sample_for(model)
        if self.sample is not None:
            check_chain(model, chain, self.sample, is_exact=True)
        costs = self._layer_costs or self._measure(list(chain.values()), sample)
        broadcast_tensors(self._world.group, [*model.parameters(), *model.buffers()])
        names = list(trained_parameters(model))
        cut = cut_evenly(
            costs,
            [bool(trained_parameters(layer)) for layer in chain.values()],
            self._layout.num_stages,
        )
        parts = {n: stage_of(chain, cut[n]) for n in self._layout.stages_of(self.rank)}
        super().prepare(join_stages(list(parts.values())), rule)
        held_numbers = {name: number for number, name in enumerate(names)}
        self._numbers_held = [held_numbers[name] for name in self._names]
        self._names = names
        self._chains = dict(parts)
        self._stages = {n: BitwiseStage(part, self.num_blocks or 1) for n, part in parts.items()}
        self.optimizer = torch_optimizer(rule, self._parameters)
        self._recorder = Recorder(clock_offset_s=self.group.clock().offset_ns / 1e9)
        self.module = StagedModel(self)

    def _sample_for(self, model: nn.Module) -> Tensor:
        """Return samples of the size of a micro-batch, all zeros."""
        self._targets_per_sample = 1
        if self.sample is not None:
            return self.sample.new_zeros(self._micro_batch_size, *self.sample.shape[1:])
        shape = self.data_shape or getattr(model, "shape", None)
        assert shape is not None, "set before `prepare`"
        self._targets_per_sample = shape.targets_per_sample
        dtype = torch.int64 if shape.is_text else next(model.parameters()).dtype
        return torch.zeros(self._micro_batch_size, *shape.inputs, dtype=dtype)

    def _measure(self, layers: Sequence[nn.Module], sample: Tensor) -> list[float]:
        """Return the layers' costs as rank 0 measures them, which leaves its buffers as they
        are."""
        costs: list[float] = []
        if self.rank == 0:
            buffers = [buffer for layer in layers for buffer in layer.buffers()]
            before = [buffer.clone() for buffer in buffers]
            with naming_operations():
                costs = measured_costs(layers, sample)
            for buffer, values in zip(buffers, before, strict=True):
                buffer.copy_(values)
        return self._world.share(costs)

    # -- a step ------------------------------------------------------------------------------

    def compute_gradients(self, batch: Batch) -> StepResult:
        """Compute the gradients of all micro-batches of `batch`, the whole global batch, and sum
        those of this rank's parameters."""
        number = self._layout.micro_batches
        self._batch = batch
        self._shares = [share_of(index, number, batch.num_samples) for index in range(number)]
        self._loss_sum, self._logits = 0.0, dict[int, Tensor | None]()
        self._steps_made += 1
        self._recorder.begin(batch.step)
        leaves = [index for index, share in enumerate(self._shares) if share]
        for stage in self._stages.values():
            stage.begin(leaves)
        began = time.perf_counter()
        with self._progress():
            for action in self._order:
                if not self._shares[action.micro_batch]:
                    continue
                if action.kind == "forward":
                    self._forward(action)
                elif action.kind != "weight gradient":
                    self._backward(action)
            self._messages.finish()
        losses = [stage.end() for stage in self._stages.values()]
        own = losses[-1].tolist() if self.counts_samples else [0.0, 0.0]
        self.summed = SummedLoss(*self.group.sum(own))
        stop_filling_memory()
        step_s = time.perf_counter() - began
        forward_s = self._recorder.seconds_of("forward")
        backward_s = self._recorder.seconds_of("backward")
        return StepResult(
            self._loss_sum * self._targets_per_sample,
            join_logits([self._logits[leaf] for leaf in sorted(self._logits)]),
            forward_s,
            backward_s,
            max(0.0, step_s - forward_s - backward_s),
        )

    def _forward(self, action: Action) -> None:
        _, place, number = action
        stage, step, share = self._stages[place], self._batch.step, self._shares[number]
        if place == 0:
            # A copy: the bits of some operations depend on how their memory is aligned.
            given = Handover(self._batch.inputs[share.start : share.stop].clone())
        else:
            given = self._take(place - 1, place, number)
        began = self._recorder.now()
        if given.random_state is None:
            self._seed_micro_batch(step, number)
        else:
            torch.set_rng_state(given.random_state)
        before = torch.get_rng_state()
        with self._autocast():
            output = stage.forward(number, given)
        if place == self._layout.num_stages - 1:
            self._end_with_loss(stage, number, output)
        state = torch.get_rng_state()
        self._recorder.add("forward", place, number, began)
        if place < self._layout.num_stages - 1:
            has_drawn = given.random_state is not None or not torch.equal(state, before)
            handover = Handover(output.detach(), output.requires_grad, state if has_drawn else None)
            self._hand(handover, place, place + 1, number)

    def _end_with_loss(self, stage: BitwiseStage, number: int, output: Tensor) -> None:
        """Compute the loss of a micro-batch, as `BitwiseTraining` has it."""
        share, samples = self._shares[number], len(self._shares[number])
        outputs = output if self.options.autocast is None else output.float()
        targets = self._batch.targets[share.start : share.stop].clone()
        loss = self.loss.mean_over(outputs, targets, samples, self._targets_per_sample)
        value = samples * loss.item()
        self._loss_sum += value
        stage.end_with(number, loss, value, samples)
        self._logits[number] = self.loss.logits(outputs)

    def _backward(self, action: Action) -> None:
        _, place, number = action
        stage, samples = self._stages[place], len(self._shares[number])
        root, gradient = stage.root_of(number), None
        if place == self._layout.num_stages - 1:
            weight = samples * (1 / self._batch.num_samples)
            gradient = torch.full_like(root, weight)
        elif root.requires_grad:
            gradient = self._take(place + 1, place, number).tensor
        began = self._recorder.now()
        back = stage.backward(number, gradient, samples / self._batch.num_samples)
        self._recorder.add("backward", place, number, began)
        if back is not None:
            self._hand(back, place, place - 1, number)

    def _progress(self) -> AbstractContextManager[None]:
        """Move messages while this rank computes; on one node its peers fetch them."""
        return nullcontext() if self._world.on_one_node else messages_moving()

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = self.options.autocast
        return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)

    def _hand(self, handover: Handover, place: int, to: int, number: int) -> None:
        dest, channel = self._layout.rank_of(to), channel_of(place, to)
        self._messages.send(handover, dest=dest, channel=channel, number=number)

    def _take(self, of: int, place: int, number: int) -> Handover:
        source, channel = self._layout.rank_of(of), channel_of(of, place)
        return self._messages.receive(source=source, channel=channel, number=number)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor | None:
        last = self._layout.num_stages - 1
        output: Tensor | None = None
        for place, chain in self._chains.items():
            given = inputs if place == 0 else self._take(place - 1, place, 0).tensor
            output = chain(given)
            if place < last:
                self._hand(Handover(output), place, place + 1, 0)
        self._messages.finish()
        return output if self.counts_samples else None

    def predict_everywhere(self, inputs: Tensor) -> Tensor:
        """Return the outputs for `inputs` on every rank."""
        outputs = self.predict(inputs)
        return self._world.share(outputs, root=self._layout.last_rank)  # type: ignore[return-value]

    def whole_state(self) -> dict[str, Any]:
        own = self.model.state_dict()
        states = [self._world.share(own, root=rank) for rank in range(self.size)]
        return {name: value for state in states for name, value in state.items()}

    # -- norms and values that are not finite --------------------------------------------------

    def gradients_are_finite(self) -> bool:
        return not self.group.sum([not super().gradients_are_finite()])[0]

    def gradient_square(self) -> float:
        """Add the squares in the order of the parameters, as one process does."""
        squares = [0.0] * len(self._names)
        for number, parameter in zip(self._numbers_held, self._parameters, strict=True):
            squares[number] = 0.0 if parameter.grad is None else square_of(parameter.grad)
        return sum(self.group.sum(squares))

    def describe_nonfinite_gradients(self, batch: Batch, loss_sum: float) -> str:
        return self.describe_nonfinite_sums(batch, loss_sum)

    def describe_nonfinite_sums(self, batch: Batch, loss: float) -> str:
        found = find_nonfinite([parameter.grad for parameter in self._parameters], loss)
        if found.number:
            found = found._replace(parameter=self._numbers_held[found.parameter])
        rows = self.group.gather(found)
        if rows is None:
            return self.group.share("")
        last, number = max(int(row[0]) for row in rows), sum(int(row[1]) for row in rows)
        losses = [row[2] for row in rows]
        summed = NonFiniteGradients(last, number, 0.0)
        return self.group.share(describe_nonfinite_sums(batch.step, losses, summed, self._names))

    # -- around the steps --------------------------------------------------------------------

    def synchronize_buffers(self) -> None:
        """Do nothing: each is one rank's, and the same after every step."""

    def actions(self) -> Sequence[TimedAction]:
        return self._recorder.actions if self._steps_made in RECORDED_STEPS else ()

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        quantities = 2 + len(STATE_NAMES[self._rule.kind])
        return ExpectedCosts(
            state_bytes=quantities * storage_bytes(self._parameters),
            state_formula=f"{quantities} · the parameters of its stages",
            bubble=ideal_bubble(self._layout, whole_backward_in_ticks),
        )

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


def channel_of(stage: int, to: int) -> int:
    """Return the channel of handovers from a stage to the next one, or to the one before."""
    return 2 * min(stage, to) + (to < stage)


def whole_backward_in_ticks(action: Action) -> float:
    """Return how long an action takes where gradients of weights come with those of inputs."""
    whole: Mapping[Any, float] = {"input gradient": 2, "weight gradient": 0}
    return whole.get(action.kind, duration_in_ticks(action))
