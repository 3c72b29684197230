"""Interface of the reducers, which sum a model's gradients over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from phalanx.comm import kernels
from phalanx.comm.buffer import is_usable_in_place
from phalanx.comm.layout import starts_of
from phalanx.comm.traffic import Traffic
from phalanx.comm.world import World
from phalanx.gradients.norms import are_finite
from phalanx.torch_backend.tensors import is_alone


class ReduceTimes(NamedTuple):
    """Seconds of one reduction."""

    exposed_s: float
    """Seconds from the end of the backward pass until the sums exist."""
    hidden_s: float | None = None
    """Seconds of all buckets but the last, in flight before that; None where nothing is."""
    last_bucket_s: float | None = None
    """Seconds of the last bucket, which nothing can hide, after the end of the backward pass."""


class SummedLoss(NamedTuple):
    """Loss of a global batch: loss ÷ weight is its mean."""

    loss: float
    weight: float
    correct: float = 0.0
    """Right predictions, where these are noted (`GradReducer.note_loss`)."""


class RankLocalState(NamedTuple):
    """State that a rank keeps between steps beside parameters and optimizer state; it fits the same
    rank among as many."""

    name: str
    """Name of what has this state; it fits nothing of another name."""
    bucket_members: list[list[int]]
    """The parameters' numbers in each bucket."""
    tensors: dict[str, Tensor]


class GradReducer:
    """Reducer that sums the gradients of fixed parameters over the ranks of a group; by itself of
    one process, whose gradients are the sums.

        with reducer:
            loss.backward()
        times = reducer.times

    When the block ends every parameter's `grad` is the sum over the ranks, the same bits on each,
    in memory that nobody else sees or writes again: a program may change it, keep it, or drop it.
    Backward passes outside only accumulate locally. A parameter that a rank's loss does not reach
    counts as zeros.
    """

    times = ReduceTimes(0.0)
    """Times of the last block."""
    sums_losses = False
    """True if the noted losses are summed with the gradients, in `summed`, at no cost."""
    summed: SummedLoss | None = None
    """Noted losses and weights over the ranks, in their order, of the last block."""
    missing: Sequence[int] = ()
    """Micro-batches that this rank has yet to compute before there are sums."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._kernels = kernels.compiled()
        self._noted = (0.0, 0.0, 0.0)

    @property
    def name(self) -> str | None:
        """Name of the algorithm that sums, for the records; None: nothing is sent."""
        return None

    def begin_micro_batch(self, number: int, samples: int, of_samples: int) -> None:
        """Begin a micro-batch, by its number in the global batch, which has `of_samples`."""

    def note_loss(self, loss: float, weight: float, correct: float = 0.0) -> None:
        """Note a loss of this rank, times its weight, and right predictions."""
        losses, weights, right = self._noted
        self._noted = losses + loss, weights + weight, right + correct

    def _take_noted(self) -> tuple[float, float, float]:
        """Return the sums of what was noted since the last call."""
        noted, self._noted = self._noted, (0.0, 0.0, 0.0)
        return noted

    def end_micro_batch(self) -> None:
        """End one after its backward passes, unless it is the rank's last of a step."""

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()
        else:
            self.fail(str(error) or type(error).__name__)

    def begin(self) -> None:
        """Begin the backward pass whose gradients are summed."""

    def mark_ready(self, parameter: Tensor) -> None:
        """Mark a gradient as complete; called by the backward pass."""

    def flush(self) -> None:
        """End the backward pass and wait for the sums. Collective.

        Raises: WaitTimeoutError naming the ranks that did not come.
        """

    def fail(self, reason: str) -> None:
        """End the backward pass, which has failed on this rank, and report that to its peers."""

    def sums(self) -> list[Tensor]:
        """Return the tensors that hold all sums, as few as possible."""
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def is_finite(self) -> bool:
        """Return whether all sums are finite, in one reading where that is not known already."""
        return are_finite(self.sums(), self._kernels)

    def expected_traffic(self) -> Traffic | None:
        """Return this rank's traffic of one reduction; None where there is no formula."""
        return None

    @property
    def is_divided(self) -> bool:
        """Return whether this rank has only the sums that it owns; others are zeros without
        memory."""
        return False

    def rejoin(self, world: World) -> None:
        """Go on with the ranks that are left, and with what this one has added."""
        raise NotImplementedError(f"{type(self).__name__} needs all ranks")

    def rank_local_state(self) -> RankLocalState | None:
        """Return the state between blocks, such as residuals; None where there is none."""
        return None

    def load_rank_local_state(self, state: RankLocalState) -> bool:  # noqa: ARG002
        """Restore a state before the first block; return False, changing nothing, where it does not
        fit. Collective."""
        return False

    def close(self) -> None:
        """Drop what the ranks share; the gradients stay. Collective."""


class GradLayout(NamedTuple):
    """Place of a tensor in a vector: arguments of `as_strided`."""

    shape: torch.Size
    stride: tuple[int, ...]
    start: int


def layouts_of(likes: Sequence[Tensor]) -> list[GradLayout]:
    """Return the layouts of tensors one after the other in a vector, each in the order in memory of
    its like: fused optimizers pair the values of a parameter and its gradient by that alone."""
    starts = starts_of([like.numel() for like in likes])
    return [
        GradLayout(like.shape, torch.empty_like(like, device="meta").stride(), start)
        for like, start in zip(likes, starts, strict=False)
    ]


def give_views(
    parameters: Sequence[Tensor], total: Tensor, layouts: Sequence[GradLayout]
) -> list[Tensor]:
    """Make every `grad` a view of a private vector; return the views."""
    views = [total.as_strided(*layout) for layout in layouts]
    for parameter, view in zip(parameters, views, strict=True):
        parameter.grad = view
    return views


def dense_gradient(parameter: Tensor) -> Tensor:
    """Return the gradient, without gaps and in the order in memory of the parameter; zeros where
    the loss does not reach it."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    if is_usable_in_place(gradient) and parameter.is_contiguous():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def own_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the dense gradients, each in memory that no other tensor sees: autograd may give a
    parameter the memory of another's gradient, or of one that the program keeps."""
    own: list[Tensor] = []
    places: set[int] = set()
    for parameter in parameters:
        gradient = dense_gradient(parameter)
        place = gradient.data_ptr()
        if place in places or not is_alone(gradient):
            gradient = torch.empty_like(parameter).copy_(gradient)
            place = gradient.data_ptr()
        places.add(place)
        own.append(gradient)
    return own
