"""Interface between the training loop and the strategies, one per file beside this one."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.comm import kernels
from phalanx.errors import UserError
from phalanx.gradients.division import Division
from phalanx.gradients.norms import (
    REMEDIES,
    NonFiniteGradients,
    are_finite,
    clip_factor,
    describe_nonfinite,
    describe_nonfinite_sums,
    numbers_of_nonfinite,
    square_of,
    sum_of_squares,
)
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.gradients.reducer import RankLocalState, ReduceTimes, SummedLoss
from phalanx.parallel.costs import Trained, data_parallel_costs
from phalanx.parallel.loss import LossFunction
from phalanx.parallel.optimizer import OptimizerSource, rule_of, torch_optimizer
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import (
    Batch,
    StateBytes,
    StepOptions,
    StepResult,
    backward,
    storage_bytes,
    trained_parameters,
)
from phalanx.records.events import ActionEvent, ExpectedCosts


class Strategy:
    """One rank's side of a way to divide training over the ranks; base class for strategies of
    programs.

    All methods are collective: all ranks call the same ones in the same order. Attributes are not.

    Every rank computes the sum of its samples' losses, and gradients are those of the mean over the
    *global* batch: the split changes the time and not the mathematics, even if ranks hold different
    numbers of samples.

    Example::

        from phalanx.parallel.replicas import Replicas

        class ClippedValues(Replicas):
            def update(self):
                nn.utils.clip_grad_value_(self.model.parameters(), 1.0)
                return super().update()

        run = phalanx.start(model, optimizer, data, batch_size=8, strategy=ClippedValues)
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))

    Args:
        group: The ranks; the strategy closes it.
        options: Options of a step. None: the defaults.
    """

    data_rank: int
    """Number of this rank's shard of each global batch."""
    data_size: int
    """Number of shards of each global batch."""
    counts_samples: bool = True
    """True if this rank counts samples, losses and correct predictions; of the ranks that see the
    same samples one does."""
    role: Literal["worker", "server"] = "worker"
    """A server sees no samples: the loop calls its `serve` in place of the steps of an epoch."""
    coordinates: dict[str, int]
    """Place along each axis of the mesh."""
    collective: str | None = None
    """Name of what carries the gradients, for the records."""
    communicated_bytes: int = 0
    """Gradient bytes that this rank has reduced."""
    device_kinds: str = ""
    """Kinds of the ranks' devices, where these were compared."""
    is_in_lockstep: bool = True
    """True if all ranks make the same steps in lockstep."""
    sums_gradients: bool = True
    """True if gradients are summed over the ranks; else they are those of this rank's samples."""
    makes_optimizer: bool = False
    """True if the strategy makes its own optimizer, whatever a program gives."""
    makes_steps: bool = False
    """True if forward and backward passes of a step's samples are one call, `compute_gradients`,
    which cuts them into micro-batches of its own."""
    meets_in_passes: bool = False
    """True if ranks meet in forward and backward passes, of which all then make as many."""
    shards: Sequence[nn.Parameter] = ()
    """This rank's parts of the trained parameters, in their order, where it does not hold these as
    the program made them; after `prepare`."""
    recomputes: bool = False
    """True if this rank can recompute its gradients of a step without its peers."""
    find_own_nonfinite: Callable[[], NonFiniteGradients] | None = None
    """Makes them again, and returns those that are not finite; None: the step cannot be made
    again."""
    runs_step_hooks: bool = True
    """True if the step hooks of a program's optimizer see all gradients and parameters."""
    scales_gradients: bool = True
    """True if the sums of the gradients can be scaled before the update."""
    sums_losses: bool = False
    """True if a step sums the noted losses with the gradients, in `summed`; after `prepare`."""
    summed: SummedLoss | None = None
    """Losses and weights over the ranks in the last step, where gradients are summed with them."""
    num_blocks: int | None = None
    """Blocks of samples to evaluate; None: one a rank. Where fixed, numbers are summed exactly."""
    grad_norm: float | None = None
    """Norm of the last step's gradients, before clipping; None where they are not clipped."""
    division: Division | None = None
    """Division of a global batch's micro-batches among the ranks; None: it cannot be changed."""
    numbers: Sequence[int] | None = None
    """Micro-batches of a global batch that this rank computes; None: its share."""
    missing: Sequence[int] = ()
    """Micro-batches of lost ranks that this rank has yet to compute in the step."""
    name: str = ""
    """Name in the certificate of a bitwise run on several ranks."""
    tensor_names: Sequence[str] | None = None
    """Names of the full model's tensors in its order, where ranks hold different ones; known after
    `prepare`. None: each holds all."""
    is_sharded: bool = False
    """True if a checkpoint needs every rank: no rank holds the full model and state."""
    model: nn.Module
    """Set by `prepare`: the model as this rank holds it."""
    module: nn.Module
    """Module that the forward pass calls."""
    loss: LossFunction
    """Loss of a strategy that makes steps itself; set before `prepare`."""
    sample: Tensor | None = None
    """Inputs of one sample, (1, …); set before `prepare` where a model is cut into stages."""
    optimizer: Optimizer
    """Set by `prepare`. Its `param_groups` take the learning rate; its state
    is torch.optim's, by the same names, so that checkpoints fit every strategy."""
    _step_weight: float = 0.0
    """Weight of this rank's samples of the step."""
    _reduced_bytes: int = 0
    """Gradient bytes that a step reduces."""
    _checking_s: float = 0.0
    """Seconds of the sums by which the gradients of a step are checked."""
    _held_numbers: Sequence[int] | None = None
    """Numbers in the model of the parameters whose gradients this rank holds, where ranks hold
    different ones; None: each holds all."""

    def __init__(self, group: RunGroup, options: StepOptions | None) -> None:
        self.group, self.options = group, options or StepOptions()
        self.rank, self.size = self.data_rank, self.data_size = group.rank, group.size
        self.coordinates = {"dp": group.rank}
        self._kernels = kernels.compiled()
        self._closing = ExitStack()
        """Releases what `prepare` has made, the last first."""

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Give every rank the weights of rank 0, and make `module` and `optimizer`.

        Overriding methods call this, which makes the optimizer unless the strategy makes its own.

        Args:
            model: The program's model.
            rule: The program's optimizer, or the options of one.

        Raises:
            UserError: If no parameter requires a gradient.
        """
        self.model = self.module = model
        self._known_rule = rule_of(rule)
        trained = trained_parameters(model)
        if not trained:
            raise UserError("the model has no parameter that requires a gradient")
        self._names, self._parameters = list(trained), list(trained.values())
        if self.size > 1 and self.sums_gradients:
            self._reduced_bytes = sum(parameter.nbytes for parameter in self._parameters)
        if not self.makes_optimizer:
            self.optimizer = torch_optimizer(rule, self._parameters)

    @property
    def knows_rule(self) -> bool:
        """True if the optimizer's costs are known by its rule; after `prepare`."""
        return self._known_rule is not None

    @property
    def _rule(self) -> OptimizerConfig:
        """Rule of the optimizer. Raises: UserError where it is a program's own, of none."""
        if self._known_rule is None:
            raise UserError(
                f"{type(self).__name__} recreates the optimizer for the shard of each rank: use "
                "SGD, Adam or AdamW, with one group of parameters and without dampening, nesterov, "
                'amsgrad or maximize, or use strategy="mpi"'
            )
        return self._known_rule

    @property
    def _trained(self) -> Trained:
        """Trained parameters that this rank holds, for formulas. Raises: as `_rule`."""
        return Trained.of(self._parameters, self._rule)

    # -- a step ------------------------------------------------------------------------------

    def apply_gradients(
        self, batch: Batch, result: StepResult, *, own_weight: float, scale: float = 1
    ) -> StepResult:
        """Check the gradients that the optimizer is about to apply, clip them, and update.

        Args:
            batch: This rank's shard of the global batch.
            result: Result of the forward and backward passes.
            own_weight: Weight of this rank's samples of the step.
            scale: Factor of the gradients before they are clipped.

        Returns:
            Result of the step, with the times of its communication.

        Raises:
            UserError: If a gradient is not finite, with the step, rank and parameter. Where such
                steps are skipped, nothing is raised and nothing has changed.
        """
        self._step_weight, self._checking_s = own_weight, 0.0
        computed_at = time.perf_counter()
        factor = self.clip_factor(scale)  # check
        if factor is not None:
            self._scale_gradients(factor)  # clip
        is_updated = factor is not None and self.update()
        why_skipped = "" if is_updated else self.reject_gradients(batch, result.loss_sum)
        exchange_s = self.exchange(batch, computed_at, is_updated=is_updated) + self._checking_s
        self.communicated_bytes += self._reduced_bytes
        if is_updated and not exchange_s and self.grad_norm is None:
            return result
        communication_s = result.communication_s + exchange_s
        return result._replace(
            communication_s=communication_s, why_skipped=why_skipped, grad_norm=self.grad_norm
        )

    def compute_gradients(self, batch: Batch) -> StepResult:
        """Compute and sum the gradients of the samples of a step by `loss`, where `makes_steps`.

        Args:
            batch: This rank's shard of the global batch.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no steps")

    def clear_gradients(self) -> None:
        """Clear the gradients of the step before."""
        for parameter in self._parameters:
            parameter.grad = None

    def begin_micro_batch(self, number: int, samples: int, of_samples: int) -> None:
        """Begin a program's micro-batch.

        Args:
            number: Number in the global batch, from 0.
            samples: Number of its samples; 0 for padding.
            of_samples: Number of samples of the global batch.
        """

    def note_loss(self, weighted_loss: float, weight: float) -> None:
        """Note a loss of the micro-batch, before its backward pass.

        Args:
            weighted_loss: The loss times its weight.
            weight: Its weight.
        """

    def end_micro_batch(self) -> None:
        """End one after its backward passes, unless it is the rank's last of a step."""

    def loss_weight(self, global_targets: int) -> float:
        """Return the factor of a rank's loss sum before its backward pass.

        Args:
            global_targets: Predictions in the global batch, over all ranks.
        """
        return 1 / global_targets

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulate gradients on this rank alone, within a `with` block."""
        return nullcontext()

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        """Run the last backward pass of a step, and complete all gradients over the ranks.

        Args:
            loss_sum: Sum over the micro-batch's targets, 0-dim.
            weight: Factor of the loss.
            inputs: Parameters whose gradients it adds to. None: all.

        Returns:
            Times of the communication.
        """
        backward(loss_sum, weight, inputs)
        return ReduceTimes(0.0)

    def clip_factor(self, scale: float = 1.0) -> float | None:
        """Return the factor of the gradients: `scale`, or less to clip them; None if any gradient
        is not finite.

        Args:
            scale: Factor before clipping.
        """
        if self.options.clip_norm is None:
            return scale if self.gradients_are_finite() else None
        square = self.gradient_square()
        self.grad_norm = norm = scale * math.sqrt(square)
        return scale * clip_factor(norm, self.options.clip_norm) if math.isfinite(square) else None

    def _held_gradients(self) -> list[Tensor | None]:
        """Return the gradients that this rank holds of what the optimizer is about to apply."""
        return [parameter.grad for parameter in self._parameters]

    def gradients_are_finite(self) -> bool:
        """Return whether all gradients that the optimizer is about to apply are finite, on all
        ranks. Collective where ranks hold different ones."""
        held = [each for each in self._held_gradients() if each is not None]
        finite = are_finite(held, self._kernels)
        return finite if self._held_numbers is None else not self._sum([not finite])[0]

    def gradient_square(self) -> float:
        """Return the squared norm of the gradients that the optimizer is about to apply, over all
        parameters and ranks; not finite if and only if one of them is not. Collective where ranks
        hold different ones: squares are added in the order of the parameters, as one process does.
        """
        gradients = self._held_gradients()
        if self._held_numbers is None:
            return sum_of_squares([each for each in gradients if each is not None])
        squares = [0.0] * len(self._names)
        for number, gradient in zip(self._held_numbers, gradients, strict=True):
            squares[number] = 0.0 if gradient is None else square_of(gradient)
        return sum(self._sum(squares))

    def _sum(self, values: Sequence[float]) -> list[float]:
        """Return sums over all ranks by which gradients are checked."""
        began_at = time.perf_counter()
        sums = self.group.sum(values)
        self._checking_s += time.perf_counter() - began_at
        return sums

    def _scale_gradients(self, factor: float) -> None:
        """Scale gradients, not in place: autograd may have given two of them the same memory."""
        if factor == 1.0:
            return
        groups = self.optimizer.param_groups
        scaled = [p for group in groups for p in group["params"] if p.grad is not None]
        gradients = torch._foreach_mul([parameter.grad for parameter in scaled], factor)
        for parameter, gradient in zip(scaled, gradients, strict=True):
            parameter.grad = gradient

    def update(self) -> bool:
        """Update the parameters by their gradients.

        Returns:
            False if a gradient was not finite, and nothing has changed.
        """
        self.optimizer.step()
        return True

    def exchange(self, batch: Batch, computed_at: float, *, is_updated: bool) -> float:  # noqa: ARG002
        """Exchange what is left with the peers at the end of a step, made or skipped.

        Args:
            batch: This rank's shard of the global batch.
            computed_at: `time.perf_counter()` when the gradients were complete.
            is_updated: True if the step was made.

        Returns:
            Seconds of communication since `computed_at`.
        """
        return 0.0

    # -- gradients that are not finite ---------------------------------------------------------

    def reject_gradients(self, batch: Batch, loss: float) -> str:
        """Return why a step is skipped: whose gradients are not finite.

        Args:
            batch: This rank's shard of the global batch.
            loss: Sum over this rank's samples.

        Raises:
            UserError: With the same words, where such steps are not skipped.
        """
        why = self.describe_nonfinite(batch, loss)
        if not self.options.skips_nonfinite:
            raise NonFiniteGradientsError(why)
        return why

    def describe_nonfinite(self, batch: Batch, loss: float) -> str:
        """Describe gradients that are not finite in a line, with the ranks and a parameter.

        Args:
            batch: This rank's shard of the global batch.
            loss: Sum over this rank's samples.
        """
        summed = self._find_nonfinite_sums()
        own = None if self.find_own_nonfinite is None else self.find_own_nonfinite()
        return describe_over_ranks(self.group, batch.step, own, loss, summed, self._names)

    def _find_nonfinite_sums(self) -> NonFiniteGradients:
        """Find the sums that are not finite, on all ranks. Collective as `gradients_are_finite`."""
        bad = numbers_of_nonfinite(self._held_gradients())
        if self._held_numbers is not None:
            flags = [0.0] * len(self._names)
            for place in bad:
                flags[self._held_numbers[place]] = 1.0
            bad = [number for number, is_bad in enumerate(self.group.sum(flags)) if is_bad]
        return NonFiniteGradients(max(bad, default=-1), len(bad), 0.0)

    # -- around the steps --------------------------------------------------------------------

    def end_forward(self) -> None:
        """End a forward pass that no backward pass follows. Ranks that share a model call it
        equally often."""

    def serve(self, num_steps: int) -> None:
        """Serve an epoch, until every worker has made its steps.

        Args:
            num_steps: Steps of each worker.
        """
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    def finish_epoch(self) -> None:
        """Synchronize parameters that have drifted apart, after an epoch and before evaluation."""

    def synchronize_buffers(self) -> None:
        """Give all ranks the same buffers, before the model is evaluated or saved."""
        self.group.synchronize_buffers(self.model)

    def actions(self) -> Sequence[ActionEvent]:
        """Return this rank's pipeline actions in the last step, if that was recorded."""
        return ()

    def staleness(self) -> Counter[int]:
        """Return counts of updates by how many of others came between reading and writing."""
        return Counter()

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        """Return the theoretical costs of this rank; after `prepare`.

        Args:
            global_batch_size: Samples of the global batch.
        """
        return data_parallel_costs(self._trained)

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return this rank's optimizer state by parameter name, to read and to fill: of the local
        shard, by torch.optim's names."""
        return {name: self.optimizer.state[p] for name, p in trained_parameters(self.model).items()}

    def whole_state(self) -> dict[str, Any]:
        """Return the model's `state_dict` with full tensors on every rank. Cost: the memory of the
        full model, if it is divided."""
        state: dict[str, Any] = self.model.state_dict()
        if not self.is_sharded:
            return state
        from phalanx.parallel.local_shards import full_tensor  # imports DTensor: seconds

        return {n: full_tensor(v) if isinstance(v, Tensor) else v for n, v in state.items()}

    def rank_local_state(self) -> RankLocalState | None:
        """Return this rank's further state between steps, such as residuals. None, on all ranks,
        where there is none."""
        return None

    def load_rank_local_state(self, state: RankLocalState) -> bool:  # noqa: ARG002
        """Load this rank's `rank_local_state` of an earlier run; after `prepare`.

        Args:
            state: The state.

        Returns:
            False if it does not fit.
        """
        return False

    def state_bytes(self) -> StateBytes:
        """Measure the memory of the state between two steps, each storage once."""
        states = [value for own in self.optimizer_state().values() for value in own.values()]
        return StateBytes(
            storage_bytes(list(self.model.parameters())),
            storage_bytes([p.grad for p in self._parameters if p.grad is not None]),
            storage_bytes([value for value in states if isinstance(value, Tensor)]),
        )

    def close(self) -> None:
        """Release the strategy's resources and leave the group; the model keeps its parameters."""
        self._closing.close()
        self.group.close()


class NonFiniteGradientsError(UserError):
    """Gradients that are not finite; all ranks that train together raise it."""

    def __init__(self, why: str) -> None:
        """why: step, ranks and a parameter."""
        super().__init__(f"{why}; {REMEDIES}")
        self.why = why


def describe_over_ranks(
    group: RunGroup,
    step: int,
    own: NonFiniteGradients | None,
    loss: float,
    summed: NonFiniteGradients,
    names: Sequence[str],
) -> str:
    """Return rank 0's description of all ranks' non-finite gradients. Collective.

    own: of this rank, before they were summed; None, on all ranks: not known any more. loss: of
    this rank. summed: of the gradients over the ranks. names: of the parameters.
    """
    rows = group.gather(own or NonFiniteGradients(-1, 0, loss))
    if rows is None:
        return group.share("")
    if own is None:
        return group.share(describe_nonfinite_sums(step, [row[2] for row in rows], summed, names))
    ranks = [NonFiniteGradients(int(row[0]), int(row[1]), row[2]) for row in rows]
    return group.share(describe_nonfinite(step, ranks, summed, names))
