"""Interface between the training loop and the strategies, one per file beside this one."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.comm.flight_recorder import FlightRecorder
from phalanx.comm.group import Group
from phalanx.errors import UserError
from phalanx.gradients.norms import (
    REMEDIES,
    NonFiniteGradients,
    are_finite,
    clip_factor,
    describe_nonfinite,
    find_nonfinite,
    square_of,
)
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.gradients.reducer import RankLocalState
from phalanx.parallel.step import (
    IGNORED,
    Batch,
    StateBytes,
    StepResult,
    TimedAction,
    UpdateTimes,
    backward,
    cross_entropy_sum,
    split_micro_batches,
    storage_bytes,
    trained_parameters,
)
from phalanx.records.schema import ExpectedCosts
from phalanx.records.spans import ClockReading, SpanRecorder, now_ns

__all__ = [
    "IGNORED",
    "Batch",
    "StateBytes",
    "StepResult",
    "Strategy",
    "TimedAction",
    "UpdateTimes",
    "backward",
    "cross_entropy_sum",
    "split_micro_batches",
    "storage_bytes",
    "trained_parameters",
]


class Strategy(ABC):
    """One rank's side of a strategy of parallelism.

    Everything here but the attributes is collective: all ranks call the same methods in the same
    order.

    Every rank computes the sum of its samples' losses; gradients are those of the mean over the
    *global* batch, so the split changes the time and not the mathematics, even when ranks hold
    different numbers of samples.
    """

    rank: int
    size: int
    local_rank: int
    data_rank: int
    """Number of this rank's shard of each global batch."""
    data_size: int
    """Number of shards of each global batch."""
    counts_samples: bool = True
    """Whether this rank counts samples, losses and correct predictions; of the ranks that see the
    same samples one does."""
    role: Literal["worker", "server"] = "worker"
    """A server sees no samples: the loop calls its `serve` in place of the steps of an epoch."""
    coordinates: dict[str, int] = {}  # noqa: RUF012  # along the axes of the mesh; replaced, not changed
    collective: str | None = None  # what carries the gradients, for the records
    library: str | None = None  # the MPI library in use and its version
    communicated_bytes: int = 0  # gradient bytes that this rank has reduced
    num_accumulated: int = 1  # micro-batches of a rank's shard of a batch
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    skips_nonfinite_gradients: bool = False
    autocast: torch.dtype | None = None  # of forward and backward passes, where that is safe
    spans: SpanRecorder | None = None  # where events are traced
    is_skipped: bool = False  # whether the last step changed nothing
    why_skipped: str = ""  # in a line, the same on every rank; of the last step that was skipped
    is_sharded: bool = False
    """Whether a checkpoint needs every rank: no rank holds the whole model and state."""
    model: nn.Module
    """Set by `prepare`: the model as this rank holds it."""
    module: nn.Module
    """Module that the forward pass calls."""
    optimizer: Optimizer
    """Set by `prepare`. Its `param_groups` take the learning rate; its state
    is torch.optim's, by the same names, so that checkpoints fit every strategy."""

    def prepare(self, model: nn.Module, rule: OptimizerConfig) -> None:  # noqa: ARG002
        """Give every rank the weights of rank 0, and make `module` and `optimizer`.

        Overriding methods call this first.
        """
        self.model = self.module = model
        trained = trained_parameters(model)
        if not trained:
            raise UserError("the model has no parameter that requires a gradient")
        self._names, self._parameters = list(trained), list(trained.values())

    def step(self, batch: Batch) -> StepResult:
        """Make one step of the optimizer, by the gradient of the mean loss over the global
        batch."""
        clock = time.perf_counter
        self._batch = batch
        self.clear_gradients()
        micro_batches = self.micro_batches(batch)
        loss_sum, logits, forward_s, backward_s = 0.0, [], 0.0, 0.0
        for micro_batch in micro_batches[:-1]:
            with self.no_sync():
                began = clock()
                output, loss = self._forward(micro_batch)
                forwarded = clock()
                backward(loss, self.loss_weight(batch.global_targets))
                loss_sum += loss.item()
                logits.append(output.detach())
                forward_s += forwarded - began
                backward_s += clock() - forwarded
        began = clock()
        output, loss = self._forward(micro_batches[-1])
        forward_s += clock() - began
        times = self.update(loss, batch.global_targets)
        logits.append(output.detach())
        return StepResult(
            loss_sum + loss.item(),
            logits[0] if len(logits) == 1 else torch.cat(logits),
            forward_s,
            backward_s + times.backward_s,
            times.communication_s,
            times.hidden_s,
            times.last_bucket_s,
            self.is_skipped,
        )

    def step_optimizer(self) -> None:
        """End `update`: gradients are complete, over all ranks. Check that they are finite, clip
        them if that was asked for, and apply them. Collective.

        Raises: UserError when one is not finite, naming the step, rank and parameter; where such
                steps are skipped, nothing has changed afterwards.
        """
        self.is_skipped = False
        factor = self._clip_factor()
        if factor is None:
            self.reject_gradients()
            return
        self._scale_gradients(factor)
        self.optimizer.step()

    def _clip_factor(self) -> float | None:
        """Return the clipping factor, or None if any gradient is not finite. Collective."""
        if self.clip_norm is None:
            return 1.0 if self.gradients_are_finite() else None
        square = self.gradient_square()
        return clip_factor(math.sqrt(square), self.clip_norm) if math.isfinite(square) else None

    def gradients_are_finite(self) -> bool:
        """Return whether all gradients that the optimizer is about to apply are finite, on all
        ranks."""
        return are_finite([p.grad for p in self._parameters if p.grad is not None])

    def gradient_square(self) -> float:
        """Return the squared norm of the gradients that the optimizer is about to apply, over all
        parameters and ranks; not finite if and only if one of them is not."""
        return sum(square_of(p.grad) for p in self._parameters if p.grad is not None)

    def reject_gradients(self) -> None:
        """Find out whose gradients are not finite, then stop or skip. Collective.

        Raises: UserError.
        """
        self.is_skipped = True
        self.why_skipped = self.describe_nonfinite_gradients()
        if not self.skips_nonfinite_gradients:
            raise UserError(f"{self.why_skipped}; {REMEDIES}")

    def describe_nonfinite_gradients(self) -> str:
        """Describe non-finite gradients in a line that names rank and parameter. Collective.

        Cost: as much as a step: every rank recomputes its own gradients, which the sums have
        replaced.
        """
        summed = find_nonfinite([parameter.grad for parameter in self._parameters], 0.0)
        return self._describe_nonfinite(self._recompute_gradients(), summed, self._names)

    def _describe_nonfinite(
        self, own: NonFiniteGradients, summed: NonFiniteGradients, names: Sequence[str]
    ) -> str:
        """Return rank 0's description of all ranks' non-finite gradients. Collective."""
        rows = self.gather(own)
        if rows is None:
            return self.share("")
        ranks = [NonFiniteGradients(int(row[0]), int(row[1]), row[2]) for row in rows]
        return self.share(describe_nonfinite(self._batch.step, ranks, summed, names))

    def _recompute_gradients(self) -> NonFiniteGradients:
        """Recompute this rank's gradients of the batch, before they are summed over the ranks, and
        check them."""
        self.clear_gradients()
        loss_sum = 0.0
        with self.no_sync():
            for micro_batch in self.micro_batches(self._batch):
                _, loss = self._forward(micro_batch)
                backward(loss, self.loss_weight(self._batch.global_targets))
                loss_sum += loss.item()
        found = find_nonfinite([parameter.grad for parameter in self._parameters], loss_sum)
        self.clear_gradients()
        return found

    def _scale_gradients(self, factor: float) -> None:
        """Scale gradients, not in place: where ranks share the sums, each would scale them."""
        if factor == 1.0:
            return
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        scaled = [parameter for parameter in parameters if parameter.grad is not None]
        gradients = torch._foreach_mul([parameter.grad for parameter in scaled], factor)
        for parameter, gradient in zip(scaled, gradients, strict=True):
            parameter.grad = gradient

    def micro_batches(self, batch: Batch) -> list[Batch]:
        """Return the micro-batches of `batch`, one forward pass each."""
        return split_micro_batches(batch, self.num_accumulated)

    def loss_weight(self, global_targets: int) -> float:
        """Return the factor of a rank's loss sum before its backward pass."""
        return 1 / global_targets

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.module(batch.inputs) if self.autocast is None else self._cast(batch.inputs)
        return logits, cross_entropy_sum(logits, batch.targets, self.label_smoothing)

    def _cast(self, inputs: Tensor) -> Tensor:
        """Return the logits, in float32, of a forward pass under autocast; the backward pass
        follows it. Parameters and their gradients stay as they are."""
        with torch.autocast("cpu", dtype=self.autocast):
            logits: Tensor = self.module(inputs)
        return logits.float()

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulate locally: within it, forward and backward add to this rank's own gradients
        alone."""
        return nullcontext()

    @abstractmethod
    def update(self, loss_sum: Tensor, global_targets: int) -> UpdateTimes:
        """Run backward for the last micro-batch, and one step of the optimizer by the gradients
        accumulated over all ranks.

        loss_sum: 0-dim, the sum over this rank's targets.
        """

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the logits of `inputs`, (n, …, classes), without gradients; None where this rank
        does not see them. Ranks that share a model call it equally often."""
        logits: Tensor = self.model(inputs)
        return logits

    def serve(self, num_steps: int) -> None:
        """Serve an epoch, until every worker has made `num_steps` steps."""
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    def finish_epoch(self) -> None:  # noqa: B027  # most have nothing to do
        """Synchronize parameters that have drifted apart, after an epoch and before evaluation."""

    def synchronize_buffers(self) -> None:  # noqa: B027  # one process has nothing to do
        """Give all ranks the same buffers, before the model is evaluated or saved: statistics of
        batch norm are the mean over the ranks that see samples, others are rank 0's. Collective."""

    @property
    def node(self) -> int:
        """Number of this rank's node."""
        return 0

    def node_leaders(self) -> Group | None:
        """Return a new group of one rank of each node, for a thread of its own; None: there is one
        node, or this rank is none of these. Collective over those ranks."""
        return None

    def checkpoint_group(self) -> Group | None:
        """Return a group of all ranks that brings checkpoints to rank 0; None where no rank has
        anything that rank 0 lacks. Collective the first time."""
        return None

    @property
    def is_node_leader(self) -> bool:
        """Return whether this rank is its node's in `node_leaders`: the first that is given
        samples."""
        return self.local_rank == 0

    def traffic(self) -> tuple[int, int] | None:
        """Return the bytes sent and received for training so far; None: not counted."""
        return None

    def actions(self) -> Sequence[TimedAction]:
        """Return this rank's pipeline actions in the last step, if it is one of the few
        recorded."""
        return ()

    def staleness(self) -> Counter[int]:
        """Return counts of updates by how many of others came between reading and writing."""
        return Counter()

    def recorders(self) -> Sequence[FlightRecorder]:
        """Return the recorders of this rank's worlds, one for each."""
        return ()

    def trace(self, spans: SpanRecorder | None) -> None:
        """Record events from now on in `spans`; None: nowhere. Not collective."""
        self.spans = spans
        for recorder in self.recorders():
            recorder.trace(spans)

    def clock(self) -> ClockReading:
        """Return the offset of this rank's clock from rank 0's. Collective."""
        return ClockReading(at_ns=now_ns(), offset_ns=0)

    def expected(self, global_batch_size: int) -> ExpectedCosts | None:  # noqa: ARG002
        """Return the theoretical costs of this rank; after `prepare`."""
        return None

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return this rank's optimizer state by parameter name, to read and to fill: of the local
        shard, by torch.optim's names."""
        return {name: self.optimizer.state[p] for name, p in trained_parameters(self.model).items()}

    def rank_local_state(self) -> RankLocalState | None:
        """Return this rank's further state between steps, such as residuals. None, on all ranks,
        where there is none."""
        return None

    def load_rank_local_state(self, state: RankLocalState) -> bool:  # noqa: ARG002
        """Load this rank's `rank_local_state` of an earlier run; False if it does not fit. After
        `prepare`; collective."""
        return False

    def state_bytes(self) -> StateBytes:
        """Measure the memory of the state between two steps, each storage once."""
        states = [
            value
            for state in self.optimizer_state().values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return StateBytes(
            storage_bytes(list(self.model.parameters())),
            storage_bytes(gradients),
            storage_bytes(states),
        )

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank is here."""

    @abstractmethod
    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        """Return every rank's values, in the order of the ranks, on rank 0; None elsewhere."""

    @abstractmethod
    def share(self, text: str) -> str:
        """Broadcast rank 0's `text`."""

    @abstractmethod
    def close(self) -> None:
        """Release the strategy's resources; the model keeps its parameters."""
