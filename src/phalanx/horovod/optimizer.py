"""`hvd.DistributedOptimizer`: gradients are reduced while backward runs, and `step` waits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from phalanx.errors import UserError
from phalanx.gradients.bucketed_reducer import BucketedGradReducer
from phalanx.gradients.buckets import overlaps_by_default
from phalanx.gradients.compression.make import make_compressor
from phalanx.horovod.collectives import Average, Compression, Sum, refuse_process_set
from phalanx.horovod.ranks import joined

NamedParameters = Iterable[tuple[str, Tensor]]


class _OptimizerReducer:
    """Gradients of one optimizer, reduced over the ranks bucket by bucket."""

    def __init__(
        self, parameters: list[Tensor], *, compresses: bool, averages: bool, sparse_as_dense: bool
    ) -> None:
        world = joined().world
        self.parameters, self._sparse_as_dense = parameters, sparse_as_dense
        self._factor = 1 / world.size if compresses and averages else 1.0
        # Made before the reducer's memory: a hook may end the first backward pass.
        self.passes_left: dict[Tensor, int] = {}
        self.is_pending = False
        """True if a gradient has come since the last `wait`."""
        self._reducer = BucketedGradReducer(
            world,
            parameters,
            make_compressor("fp16" if compresses else "none"),
            overlaps=True,
            on_thread=overlaps_by_default(world.size, on_one_node=world.on_one_node),
            divisor=1.0 if compresses or not averages else float(world.size),
            has_hooks=False,
        )
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def _on_gradient(self, parameter: Tensor) -> None:
        """Hand over the gradient of the last backward pass before the step."""
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            if not self._sparse_as_dense:
                raise UserError(
                    "hvd.DistributedOptimizer: a gradient is sparse: give sparse_as_dense=True"
                )
            parameter.grad = gradient.to_dense()
        self.is_pending = True
        self.passes_left[parameter] -= 1
        if self.passes_left[parameter] < 0:
            raise UserError(
                "gradients were computed more than backward_passes_per_step times before step(): "
                "raise backward_passes_per_step to accumulate them"
            )
        if self.passes_left[parameter] == 0:
            if not self._reducer.is_open:
                self._reducer.begin()
            self._reducer.mark_ready(parameter)

    def wait(self) -> None:
        """Wait for the sums; parameters without a gradient count as zeros. Collective."""
        if not self._reducer.is_open:
            self._reducer.begin()
        self._reducer.flush()
        self.is_pending = False
        if self._factor != 1.0:
            for values in self._reducer.sums():
                values.mul_(self._factor)


class _Distributed(Optimizer):
    """Optimizer whose `step` waits for the gradients of all ranks; put before the program's own
    class by `DistributedOptimizer`."""

    _gradients: _OptimizerReducer | None
    backward_passes_per_step: int
    _is_synchronized = False
    _synchronizes = True

    def synchronize(self) -> None:
        """Wait for the reduced gradients, e.g. to clip them before `step`. Collective."""
        if self._gradients is not None:
            self._gradients.wait()
        self._begin_again()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make a `step` inside that does not wait: after `synchronize`."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes before each step, from the next one on."""
        self.backward_passes_per_step = _check_passes(passes)
        self._begin_again()

    def _begin_again(self) -> None:
        if (gradients := self._gradients) is not None:
            passes = self.backward_passes_per_step
            gradients.passes_left = dict.fromkeys(gradients.parameters, passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the gradients, unless inside `skip_synchronize`, and update. Collective.

        closure: called once, before the gradients are waited for; its value is returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._synchronizes:
            if self._is_synchronized:
                warnings.warn(
                    "step() after synchronize() reduces the gradients a second time: call it "
                    "inside optimizer.skip_synchronize()",
                    stacklevel=2,
                )
            self.synchronize()
        self._is_synchronized = False
        super().step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Raises: UserError between backward and step."""
        if self._gradients is not None and self._gradients.is_pending:
            raise UserError(
                "zero_grad() was called after backward() and before step() or synchronize(), "
                "while the ranks sum the gradients: call it before backward()"
            )
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state, and count backward passes from the next one on."""
        self._begin_again()
        self._is_synchronized = False
        super().load_state_dict(state_dict)


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: Optimizer,
    named_parameters: NamedParameters | None = None,
    compression: type = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    sparse_as_dense: bool = False,
    process_set: object = None,
) -> Any:
    """Return an optimizer of the same class, whose gradients are reduced over all ranks.

    It shares parameter groups and state with `optimizer`.

    Example::

        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        optimizer.zero_grad()
        loss.backward()  # gradients are summed as they become ready
        optimizer.step()  # waits for them

    Args:
        optimizer: Optimizer of parameters in CPU memory; not LBFGS.
        named_parameters: Names and parameters, compared with those of the optimizer. None: not.
        compression: Compression.none, or Compression.fp16.
        backward_passes_per_step: Backward passes whose gradients are added up, not averaged, before
            each step.
        op: Average, or Sum.
        gradient_predivide_factor: Divisor before the sum and factor after it; sums are made in
            float32 or better here, so the result is that of 1.
        num_groups: Refused: buckets follow the backward pass.
        groups: Refused: buckets follow the backward pass.
        sparse_as_dense: True to make sparse gradients, such as those of embeddings, dense.
        process_set: Refused: all ranks take part.

    Returns:
        The optimizer; its `step` waits for the gradients of all ranks.

    Raises:
        UserError: For what is refused, LBFGS, and parameters outside CPU memory.
    """
    refuse_process_set(process_set)
    if groups is not None or num_groups:
        raise UserError(
            "hvd.DistributedOptimizer: groups= is not supported, since gradients are summed in "
            "buckets in the order of the backward pass: leave it out"
        )
    if op not in (Average, Sum):
        raise UserError("hvd.DistributedOptimizer: op= must be hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise UserError("hvd.DistributedOptimizer: gradient_predivide_factor= is for hvd.Average")
    if compression not in (Compression.none, Compression.fp16):
        raise UserError("hvd.DistributedOptimizer: compression= must be Compression.none or .fp16")
    if isinstance(optimizer, LBFGS):
        raise UserError("hvd.DistributedOptimizer: LBFGS computes gradients within its step()")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is not None:
        _check_names(list(named_parameters), parameters)
    trained = [p for p in parameters if p.requires_grad]
    compresses = compression is Compression.fp16
    _check_trained(trained, compresses=compresses)
    kind = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    made: Any = object.__new__(kind)
    # A scheduler has put its own `step` on the instance, which would go past this one.
    made.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    made.backward_passes_per_step = _check_passes(backward_passes_per_step)
    made._gradients = None
    if joined().world.size > 1:
        made._gradients = _OptimizerReducer(
            trained,
            compresses=compresses,
            averages=op == Average,
            sparse_as_dense=sparse_as_dense,
        )
    made._begin_again()
    return made


def _check_passes(passes: int) -> int:
    if passes < 1:
        raise UserError(f"backward_passes_per_step={passes} must be at least 1")
    return passes


def _check_names(named: list[tuple[str, Tensor]], parameters: list[Tensor]) -> None:
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"named_parameters names {', '.join(twice)} more than once")
    known = {id(parameter) for _, parameter in named}
    if unnamed := sum(id(parameter) not in known for parameter in parameters):
        raise UserError(
            f"named_parameters leaves out {unnamed} of the optimizer's {len(parameters)} "
            "parameters: give the parameters of all its models, or leave named_parameters out"
        )


def _check_trained(trained: list[Tensor], *, compresses: bool) -> None:
    if not trained:
        raise UserError("hvd.DistributedOptimizer: none of its parameters requires a gradient")
    for parameter in trained:
        if parameter.device.type != "cpu":
            raise UserError(
                f"hvd.DistributedOptimizer: a parameter is on {parameter.device}, but gradients "
                'are summed in CPU memory: use DistributedDataParallel on backend "mpi" for it'
            )
        if compresses and parameter.dtype not in (torch.float32, torch.float64):
            raise UserError(f"Compression.fp16 is for float32 and float64, not {parameter.dtype}")
