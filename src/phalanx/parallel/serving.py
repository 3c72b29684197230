"""A parameter server but for its loop: the messages between workers and servers, the bound on the
workers' lead, and a server's shard of the parameters.

A worker's push is a header of three numbers and the gradient of the server's shard, both straight
from memory; the reply, sent when the worker may continue, is the shard's weights, straight into the
memory of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.wait import WaitPolicy, wait_until
from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.vector import views_of

_HEADER, _GRADIENT, _WEIGHTS, _STATE = 1, 2, 3, 4  # tags

# A server sleeps while the workers compute, as it may share a core with one. Oversleeping costs a
# fraction of the transfer of a gradient.
SERVER_WAIT = WaitPolicy(spins=20, yields=20, nap_s=100e-6)


class Header(NamedTuple):
    """Header of a gradient."""

    step: float
    learning_rate: float
    share: float
    """This worker's share of the global batch's targets."""


HEADER_BYTES = 8 * len(Header._fields)


def push_and_pull(
    group: Group, header: Header, gradient: Tensor, weights: Tensor, shards: Mapping[int, range]
) -> None:
    """Push gradients to all servers and pull fresh `weights` from them, at the same time; a
    worker's step.

    gradient, weights: (n,); shards: of them, by the server's rank.
    Raises: WaitTimeoutError naming the server that did not answer.
    """
    words = Buffer.of(np.array(header, np.float64))
    given, taken = Buffer.of(gradient.numpy()), Buffer.of(weights.numpy())
    requests = [
        group.receive(taken.part(shard.start, shard.stop), source=server, tag=_WEIGHTS)
        for server, shard in shards.items()
    ]
    for server, shard in shards.items():
        requests.append(group.send(words, dest=server, tag=_HEADER))
        part = given.part(shard.start, shard.stop)
        requests.append(group.send(part, dest=server, tag=_GRADIENT))
    for request in requests:
        request.wait()


def receive_header(group: Group, awaited: Callable[[], Iterable[int]]) -> tuple[Header, int]:
    """Return the next header of any worker, and its rank.

    awaited: returns the ranks that are waited for.
    Raises: WaitTimeoutError.
    """
    words = np.empty(len(Header._fields))
    request = group.receive(Buffer.of(words), source=None, tag=_HEADER)
    wait_until(
        request.test,
        SERVER_WAIT,
        timeout_s=group.timeout_s,
        on_timeout=lambda: (
            f"rank {group.labels.short(group.rank)}, a server, waited {group.timeout_s:g} s for "
            f"gradients of rank {', '.join(map(group.labels.short, sorted(awaited())))}"
        ),
    )
    assert request.source is not None, "the header has come"
    return Header(*words.tolist()), request.source


def receive_gradient(group: Group, into: Tensor, source: int) -> None:
    """Receive the gradient that follows a header."""
    group.receive(Buffer.of(into.numpy()), source=source, tag=_GRADIENT).wait()


def send_weights(group: Group, weights: Tensor, dests: Sequence[int]) -> None:
    """Send weights to the waiting `dests`; returns when they may change again."""
    buffer = Buffer.of(weights.numpy())
    for request in [group.send(buffer, dest=dest, tag=_WEIGHTS) for dest in dests]:
        request.wait()


def send_state(group: Group, state: Sequence[Tensor], steps: float, *, dest: int) -> None:
    """Send the optimizer's state of a server's shard, and the steps that it has made."""
    counted = np.array([steps], np.float64)
    parts = [Buffer.of(counted), *(Buffer.of(quantity.numpy()) for quantity in state)]
    for request in [group.send(part, dest=dest, tag=_STATE) for part in parts]:
        request.wait()


def receive_states(group: Group, into: Sequence[Tensor], shards: Mapping[int, range]) -> float:
    """Receive the states of all servers, and return the steps that they have made.

    into: (n,) of each quantity. shards: of them, by the server's rank.
    """
    counted = np.zeros(1)
    for server, shard in shards.items():
        parts = [quantity[shard.start : shard.stop] for quantity in into]
        buffers = [Buffer.of(counted), *(Buffer.of(part.numpy()) for part in parts)]
        for request in [group.receive(part, source=server, tag=_STATE) for part in buffers]:
            request.wait()
    return float(counted[0])


class Clocks:
    """The steps of every worker in one epoch, as a server sees them.

    Two notions that are easily mixed up: a worker's *lead* is how many steps it has made more than
    the slowest one, which the bound is about; the *staleness* of its update is how many updates of
    others were applied after it had read the weights, which is what hurts.
    Source: Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel
    parameter server", NIPS 26, for the bound.
    """

    def __init__(self, workers: int, num_steps: int, max_lead: int | None) -> None:
        """num_steps: of every worker. max_lead: of a worker that begins a step; None: any.

        After its last step everybody waits for everybody, so that all have the same weights.
        """
        self.staleness: Counter[int] = Counter()
        """Updates by the number of other updates between reading and writing."""
        self.leads: Counter[int] = Counter()
        """Steps started, by the lead at which the worker was allowed to continue."""
        self._num_steps, self._max_lead = num_steps, max_lead
        self._done = [0] * workers
        self._waiting: set[int] = set()
        self._num_updates = 0
        self._read_at = [0] * workers

    @property
    def awaited(self) -> list[int]:
        """Workers that have steps left and are not held back."""
        return [
            worker
            for worker, done in enumerate(self._done)
            if done < self._num_steps and worker not in self._waiting
        ]

    def push(self, worker: int, *, writes: bool = True) -> list[int]:
        """Record that `worker` has made a step and waits; return the workers that may continue,
        which read now.

        writes: whether the step has an update; one without samples has none.
        """
        if writes:
            self.staleness[self._num_updates - self._read_at[worker]] += 1
            self._num_updates += 1
        self._done[worker] += 1
        self._waiting.add(worker)
        slowest = min(self._done)
        released = [w for w in sorted(self._waiting) if self._may_continue(w, slowest)]
        for waiting in released:
            self._waiting.remove(waiting)
            self._read_at[waiting] = self._num_updates
            if self._done[waiting] < self._num_steps:
                self.leads[self._done[waiting] - slowest] += 1
        return released

    def _may_continue(self, worker: int, slowest: int) -> bool:
        done = self._done[worker]
        if done == self._num_steps:
            return slowest == done
        return self._max_lead is None or done - slowest <= self._max_lead


class ServerShard:
    """Values [span.start, span.stop) of the parameters' vector, and torch.optim's update of them.

    An update of values is independent of the other values, so one optimizer of a slice makes the
    numbers that an optimizer of the parameters would make.
    """

    def __init__(self, vector: Tensor, span: range, rule: OptimizerConfig) -> None:
        """vector: (n,), which is updated in place."""
        self.span = span
        self.values = nn.Parameter(vector[span.start : span.stop], requires_grad=False)
        self.quantities = STATE_NAMES[rule.kind]
        """Names of what the optimizer keeps for every value."""
        self._optimizer = torch_optimizer(rule, [self.values])
        self._counts_steps = rule.name != "sgd"

    @torch.no_grad()
    def update(self, gradient: Tensor, learning_rate: float) -> None:
        """Update by a gradient, (len(span),)."""
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self.values.grad = gradient
        self._optimizer.step()
        self.values.grad = None

    def state(self) -> list[Tensor]:
        """Return (len(span),) of each quantity; zeros before the first update."""
        state = self._optimizer.state.get(self.values, {})
        return [state.get(name, torch.zeros_like(self.values)) for name in self.quantities]

    def state_tensors(self) -> list[Tensor]:
        """Return the tensors of the optimizer's state."""
        return list(self._optimizer.state.get(self.values, {}).values())

    def load_optimizer_state(
        self, parameters: Sequence[nn.Parameter], optimizer: Optimizer
    ) -> None:
        """Take over `optimizer`'s state of all parameters, which that then drops."""
        taken = self._optimizer.state[self.values]
        for name in self.quantities:
            whole = [
                optimizer.state[p].get(name, torch.zeros_like(p)).flatten() for p in parameters
            ]
            taken[name] = torch.cat(whole)[self.span.start : self.span.stop].clone()
        if self._counts_steps:
            steps = [state["step"] for state in optimizer.state.values() if "step" in state]
            taken["step"] = max(steps, default=torch.tensor(0.0)).clone()
        optimizer.state.clear()

    @property
    def steps(self) -> float:
        """Updates made, where the optimizer counts them."""
        return float(self._optimizer.state.get(self.values, {}).get("step", 0.0))


def export_optimizer_state(
    rule: OptimizerConfig,
    whole: Sequence[Tensor],
    steps: float,
    parameters: Sequence[nn.Parameter],
    optimizer: Optimizer,
) -> None:
    """Give `optimizer` the state of all parameters, as if it had made every step itself.

    whole: (n,) of each quantity, over all servers. steps: that they have made.
    """
    counted = {"step": torch.tensor(steps)} if rule.name != "sgd" else {}
    for parameter, *views in zip(
        parameters, *(views_of(vector, parameters) for vector in whole), strict=True
    ):
        own = {name: value.clone() for name, value in counted.items()}
        optimizer.state[parameter] = own | dict(zip(STATE_NAMES[rule.kind], views, strict=True))
