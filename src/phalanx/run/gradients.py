"""Gradients of a global batch: losses of micro-batches in, a step of the optimizers out."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from phalanx.comm.errors import WaitTimeoutError
from phalanx.errors import UserError
from phalanx.gradients.reducer import SummedLoss
from phalanx.parallel.step import Batch, StepResult, backward
from phalanx.parallel.strategy import NonFiniteGradientsError, Strategy
from phalanx.run.agreement import check_together, first_text
from phalanx.run.batch import MicroBatch
from phalanx.run.model_changes import BatchNormSync
from phalanx.run.nonfinite import StepPasses, find_bad_sample
from phalanx.run.optimizers import (
    FollowedRate,
    StepSchedulers,
    Untrained,
    check_dense,
    check_step_hooks,
    complete,
    nothing_of,
    trained_by,
)
from phalanx.run.program_loss import (
    LossOf,
    ProgramLoss,
    WeightOf,
    check_loss,
    check_mean,
    check_weight,
)
from phalanx.run.randomness import seed_micro_batch

NOTHING = torch.empty(0)
BEGINNING = StepResult(0.0, None, 0.0, 0.0, 0.0)
WATCHED_UPDATES = 3
"""First updates after which gradients are watched: a program does in each step what it does."""


class StepGradients:
    """Gradients of the micro-batches that this rank computes of a global batch.

    They are added up weighted, summed over the ranks by the last backward pass of the last
    micro-batch, and divided by the sum of the weights.
    """

    num_samples: int
    """Samples of this rank so far in the step."""
    is_collective = False
    """True if the ranks meet in the backward pass of the micro-batch's loss."""

    def __init__(
        self,
        strategy: Strategy,
        optimizers: Mapping[str, Optimizer],
        *,
        seed: int,
        schedulers: Sequence[LRScheduler] = (),
        counts_by_weight: bool = False,
        batch_norm: BatchNormSync | None = None,
    ) -> None:
        """strategy: prepared. optimizers: by the names by which a loss asks for one. seed: of the
        random numbers of micro-batches. schedulers: each makes a step after every update.
        counts_by_weight: how many samples a global batch has is known after its last micro-batch.
        batch_norm: of the model's layers, where it has some."""
        self._counts_by_weight = counts_by_weight
        self.passes = StepPasses(strategy, seed)
        """Passes of the step that `run.step` made."""
        self._num_added = 0  # micro-batches of the step
        self._schedulers = StepSchedulers(schedulers, optimizers)
        self._strategy, self._seed, self._batch_norm = strategy, seed, batch_norm
        self._parameters = {name: trained_by(optimizer) for name, optimizer in optimizers.items()}
        self._optimizers = optimizers
        self._rate = FollowedRate(strategy, next(iter(optimizers.values())))
        self._all = self._due = frozenset(optimizers)
        """Optimizers that the step trains."""
        self._until_backward = ExitStack()
        self._is_first_step = True
        self._missing = frozenset[str]()
        self._batch_weight: float | None = None
        self._accumulated: nn.Parameter | None = None  # one with a gradient of this step
        self._is_applying = False
        self._updates_to_watch = WATCHED_UPDATES
        self._used: list[tuple[nn.Parameter, Tensor, int]] = []
        """Gradients of the last update, each with the version that the update has used."""
        self._hooks = [own.register_step_pre_hook(self._check_step) for own in optimizers.values()]
        self._untrained = Untrained(strategy.model, optimizers)
        self._accumulating = [*itertools.chain(*self._parameters.values())]
        if strategy.meets_in_passes:  # the model has them until the sum, and then the shards
            self._accumulating = [p for p in strategy.model.parameters() if p.requires_grad]

    def resume(self) -> None:
        """Make none of the checks of a first step: the peers have made it."""
        self._is_first_step = False
        self._schedulers.resume()

    def begin_step(self, batch: MicroBatch) -> None:
        """Clear the gradients. batch: the first micro-batch."""
        self._check_unchanged()
        self._schedulers.begin_step()
        self._strategy.clear_gradients()
        self._global_samples = batch.global_samples
        self._result = BEGINNING
        self._weight, self.num_samples, self._accumulated = 0.0, 0, None
        self._bad_sample = ""
        self.passes.clear()
        self._num_added = 0
        self._has_own_weights: bool | None = None  # None: no micro-batch of the step has told

    def begin(self, batch: MicroBatch) -> None:
        """Begin a micro-batch, before its forward pass."""
        self._schedulers.check()
        self._due = self._all if batch.optimizer is None else frozenset({batch.optimizer})
        self._missing, self._batch_weight = self._due, None
        self.is_collective = self._batch_norm is not None
        if not batch.ends_step:
            self._until_backward.enter_context(self._strategy.no_sync())
        if self._batch_norm is not None:
            self._batch_norm.begin(batch)
        self._strategy.begin_micro_batch(batch.number, batch.num_samples, batch.global_samples)
        seed_micro_batch(self._seed, batch.step, batch.number)
        self._began = time.perf_counter()

    @property
    def is_computed(self) -> bool:
        """Return whether the micro-batch has had every backward pass."""
        return not self._missing

    def check(self, batch: MicroBatch) -> None:
        """Raises: UserError when the micro-batch has not had every backward pass."""
        if self._missing:
            call = "run.backward"
            if len(self._missing) < len(self._parameters) and batch.optimizer is None:
                call += f"(loss, optimizer={min(self._missing)!r})"
            raise UserError(
                f"{call} was not called for micro-batch {batch.number} of step {batch.step}: call "
                "it once for each micro-batch of the loop"
            )

    def add(
        self, batch: MicroBatch, loss: Tensor, weight: float | None, optimizer: str | None
    ) -> None:
        """Differentiate the loss of a micro-batch. Collective where it is the step's last.

        weight, optimizer: as `ProgramRun.backward` has them.
        Raises: UserError for a loss or a call that does not fit.
        """
        called_at = time.perf_counter()
        check_loss(loss)
        if weight is None and self._counts_by_weight:
            weight = float(batch.num_samples)
        self._check_accumulated()
        if self._is_first_step and weight is None and not self._weight:
            check_mean(loss, batch.num_samples, warns=self._strategy.rank == 0)
        names = self._names_for(optimizer, batch)
        is_first = self._missing == self._due
        own = self._weight_of(batch, weight)
        factor = own
        if self._strategy.sums_gradients:
            global_weight = 1 if weight is not None else self._global_samples
            factor *= self._strategy.loss_weight(global_weight)
        inputs = None if names == self._all else self._parameters[next(iter(names))]
        value = loss.item()
        meets = self.is_collective or self._strategy.meets_in_passes
        if not own and not math.isfinite(value) and not meets:
            # Such as a mean over no tokens: what counts nothing adds nothing, not 0 · nan.
            loss, value = nothing_of(itertools.chain(*self._parameters.values())), 0.0
        if own and not math.isfinite(value):
            self._bad_sample = self._bad_sample or find_bad_sample(batch, self._strategy.rank)
        self._missing -= names
        self._strategy.note_loss(own * value if own else 0.0, own if is_first else 0.0)
        hidden_s, last_bucket_s, exposed_s = None, None, 0.0
        if batch.ends_step and not self._missing:
            try:
                times = self._strategy.backward_and_reduce(loss, factor, inputs)
            except RuntimeError:
                check_dense(self._strategy.model)
                raise
            except WaitTimeoutError as error:
                raise WaitTimeoutError(
                    f"step {batch.step}: {error}: has that rank left its loop, does it alone call "
                    "run.evaluate or the like, or is it slower than timeout_s= allows?"
                ) from error
            exposed_s, hidden_s, last_bucket_s = times
            self._accumulated = None  # the step continues without lost ranks
        else:
            backward(loss, factor, inputs, keeps_graph=bool(self._missing))
            if not self._missing:
                self._strategy.end_micro_batch()
            self._accumulated = next((p for p in self._accumulating if p.grad is not None), None)
            if not self._missing:
                self._until_backward.close()
                self._schedulers.note()
        ended, result = time.perf_counter(), self._result
        self._result = StepResult(
            result.loss_sum + (own * value if own else 0.0),  # 0 · nan of what counts nothing
            None,
            result.forward_s + called_at - self._began,
            result.backward_s + ended - called_at - exposed_s,
            result.communication_s + exposed_s,
            hidden_s,
            last_bucket_s,
        )
        self._began = ended

    def compute(
        self, batch: MicroBatch, function: LossOf, weight: WeightOf | None
    ) -> Tensor | None:
        """Compute gradients of a micro-batch that the strategy cuts into its own. Collective.

        Returns: the outputs, detached; None where this rank does not see them.
        Raises: UserError for a loss, a weight or a batch that does not fit.
        """
        self._names_for(None, batch)
        loss, parts = self._strategy.loss, (batch.inputs, batch.targets)
        assert isinstance(loss, ProgramLoss), "of strategies that make steps"
        if not all(isinstance(part, Tensor) for part in parts):
            kinds = " and ".join(type(part).__name__ for part in parts)
            raise UserError(
                "run.step: a pipeline takes one tensor of inputs and one of targets, but these are "
                f"{kinds}: give such data, or use another strategy"
            )
        if weight is not None and self._strategy.num_blocks is not None:
            raise UserError("run.step: a bitwise pipeline takes no weight=: leave bitwise out")
        if self._has_own_weights not in (None, weight is not None):
            raise UserError("run.step: give weight= in every step, or in none")
        self._has_own_weights = weight is not None
        loss.begin(function, weight)
        divisor = self._global_samples if weight is None else 1
        result = self._strategy.compute_gradients(
            Batch(*parts, batch.num_samples, divisor, batch.step)
        )
        if not math.isfinite(result.loss_sum):
            self._bad_sample = find_bad_sample(batch, self._strategy.rank)
        self._missing = frozenset()
        self._until_backward.close()
        self._weight = float(batch.num_samples) if weight is None else loss.weights
        self.num_samples = batch.num_samples
        self._result = result._replace(logits=None)
        return result.logits

    def apply(self, batch: MicroBatch) -> StepResult:
        """Check the sums, clip them, and update the parameters. Collective.

        Raises: UserError when gradients are not finite, naming the step, the ranks and a parameter,
                and where the program has changed its optimizer as the strategy's cannot be.
        """
        self._rate.follow()
        scale, result = 1.0, self._result
        if self._is_first_step:
            self._is_first_step = False
            check_dense(self._strategy.model)
            if self._strategy.is_in_lockstep:
                check_together(
                    self._strategy.group, bool(self._has_own_weights), "give run.backward a weight="
                )
        total, sums_gradients = self._weight, self._strategy.sums_gradients
        is_summed = self._strategy.sums_losses or not self._strategy.is_in_lockstep
        if sums_gradients and not is_summed:
            group = self._strategy.group
            own = [result.loss_sum, total] if self._strategy.counts_samples else [0.0, 0.0]
            began_at = time.perf_counter()
            self._strategy.summed = SummedLoss(*group.sum(own))
            exchange_s = result.communication_s + time.perf_counter() - began_at
            result = result._replace(communication_s=exchange_s)
        if self._has_own_weights and (summed := self._strategy.summed) is not None:
            total = summed.weight
            # So that the sum over the ranks, divided by the samples, is the weighted mean.
            result = result._replace(loss_sum=result.loss_sum / (total or 1) * self._global_samples)
        if self._has_own_weights or not sums_gradients:
            scale = 1 / total if total else 0.0
        global_weight = 0 if self._has_own_weights else self._global_samples
        self._untrained.check()
        if not self._strategy.runs_step_hooks:
            check_step_hooks(self._optimizers.values(), known=self._check_step)
        for name, parameters in self._parameters.items():
            if name in self._due:
                complete(parameters)
            else:  # sums of nothing
                for parameter in parameters:
                    parameter.grad = None
        can_repeat = 0 < len(self.passes) == self._num_added and not self.is_collective
        self._strategy.find_own_nonfinite = self.passes.find_nonfinite if can_repeat else None
        self._is_applying = True
        shard = Batch(NOTHING, NOTHING, batch.num_samples, global_weight, batch.step)
        try:
            result = self._strategy.apply_gradients(
                shard, result, scale=scale, own_weight=self._weight
            )
        except NonFiniteGradientsError as error:
            if sample := self._first_bad_sample():
                mend = "fix the cause, or skip such steps by bad_gradients='skip'"
                raise UserError(f"{error.why}; {sample}: {mend}") from None
            raise
        self._is_applying = False
        if result.is_skipped and (sample := self._first_bad_sample()):
            result = result._replace(why_skipped=f"{result.why_skipped}; {sample}")
        if self._updates_to_watch:
            self._updates_to_watch -= 1
            trained = itertools.chain(*self._parameters.values())
            self._used = [(p, p.grad, p.grad._version) for p in trained if p.grad is not None]
        return result

    def _first_bad_sample(self) -> str:
        """Return the sample of the step whose data are not finite. Collective, but where ranks
        train alone."""
        if not (self._strategy.sums_gradients and self._strategy.is_in_lockstep):
            return self._bad_sample
        return first_text(self._strategy.group, self._bad_sample)

    def release(self) -> None:
        """Leave model and optimizers to the program, after the loop."""
        for hook in self._hooks:
            hook.remove()

    def _check_unchanged(self) -> None:
        """Warn once of gradients that the program has changed after the update that used them, as
        `clip_grad_norm_` does where it was left in a loop: nothing comes of it."""
        used, self._used = self._used, []
        if any(p.grad is g and g._version != version and g.any() for p, g, version in used):
            self._updates_to_watch = 0
            if self._strategy.rank == 0:
                warnings.warn(
                    "gradients were changed after run.backward, which had updated the parameters "
                    "by them: it has no effect. Give clip_norm= to phalanx.start, or change them "
                    "in optimizer.register_step_pre_hook",
                    stacklevel=2,
                )

    def _check_accumulated(self) -> None:
        """Raises: UserError when the program has cleared gradients that count."""
        if self._accumulated is not None and self._accumulated.grad is None:
            raise UserError(
                "the gradients of the step's first micro-batches were cleared: leave zero_grad() "
                "out of the loop, since the run clears gradients after each step"
            )

    def _check_step(self, *_: object) -> None:
        """Raises: UserError when the program steps an optimizer in the loop."""
        if not self._is_applying:
            raise UserError(
                "optimizer.step() was called in the loop of a run, which would update twice: leave "
                "it out, since run.backward steps after each global batch"
            )

    def step_schedulers(self) -> None:
        """Let the schedulers follow the update of the last step's optimizers."""
        self._schedulers.step(self._due)

    def _names_for(self, optimizer: str | None, batch: MicroBatch) -> frozenset[str]:
        """Return the optimizers whose gradients a loss is for."""
        if optimizer is None and self._missing == self._due:
            return self._due
        given = ", ".join(map(repr, self._parameters))
        if optimizer is not None and optimizer not in self._parameters:
            raise UserError(
                f"run.backward: optimizer={optimizer!r} is unknown to phalanx.start: {given}"
                if "" not in self._parameters
                else f"run.backward: optimizer={optimizer!r}, but the optimizer of phalanx.start "
                "has no name: leave it out, or give that a mapping of names to optimizers"
            )
        names = self._due if optimizer is None else frozenset({optimizer})
        if not names <= self._due:
            raise UserError(
                f"run.backward: optimizer={optimizer!r}, but step {batch.step} trains "
                f"{batch.optimizer!r}: pass the loss of batch.optimizer in each step"
            )
        if not names <= self._missing:
            raise UserError(
                "run.backward is called once for each micro-batch of the run's loop"
                if "" in self._parameters
                else "run.backward is called once for each micro-batch and optimizer: without "
                f"optimizer= it serves all of them ({given})"
            )
        return names

    def _weight_of(self, batch: MicroBatch, weight: float | None) -> float:
        """Return by how much the micro-batch counts, the same for each of its losses."""
        if weight is not None:
            check_weight(weight)
        if self._has_own_weights not in (None, weight is not None):
            raise UserError("run.backward: give weight= for every micro-batch, or for none")
        is_first = self._missing == self._due
        if not is_first and weight != self._batch_weight:
            raise UserError(
                f"run.backward: weight={weight} after weight={self._batch_weight} for the same "
                "micro-batch: all its losses need the same weight"
            )
        if weight is not None and not self._strategy.scales_gradients:
            raise UserError(
                'strategy="shared" and "server" take no weight= of micro-batches: use '
                'strategy="mpi"'
            )
        self._has_own_weights = weight is not None
        own = float(batch.num_samples if weight is None or not batch.num_samples else weight)
        if is_first:
            self._num_added += 1
            self._weight += own
            self.num_samples += batch.num_samples
        self._batch_weight = weight
        return own
