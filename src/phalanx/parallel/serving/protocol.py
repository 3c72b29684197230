"""Protocol between workers and servers: gradients one way, weights the other.

A worker's push is a header of three numbers and the gradient of the server's shard, both straight
from memory; the reply, sent when the worker may continue, is the shard's weights, straight into the
memory of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.wait import WaitPolicy, wait_until

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
